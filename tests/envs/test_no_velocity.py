"""Tasks without velocities are the original environments with some columns of their observations."""

import numpy as np
import pytest
from tests.envs.test_engines import actions_of, trajectory

from lockstep.envs.catalog import describe_env, known_environments, make_engine, make_one
from lockstep.envs.choice import choose_engine
from lockstep.envs.settings import EnvConfig
from lockstep.envs.tasks.no_velocity import NO_VELOCITY_TASKS

REQUIRED_MODULES = {"lunarlander-no-velocity": "Box2D"}
ENGINES = ["gymnasium", "gymnasium-async", "gymnasium-vector", "envpool"]


@pytest.mark.parametrize("task", list(NO_VELOCITY_TASKS))
@pytest.mark.parametrize("name", ENGINES)
def test_task_omits_columns_of_the_original_environment(task: str, name: str) -> None:
    for module in (REQUIRED_MODULES.get(task), "envpool" if name == "envpool" else None):
        if module:
            pytest.importorskip(module)
    if name == "gymnasium-vector" and task != "cartpole-no-velocity":
        pytest.skip("the environment has no vector version")
    definition = NO_VELOCITY_TASKS[task]
    partial, original = (
        make_engine(EnvConfig(id=env_id, engine=name, count=2), 3, 0, 1)  # type: ignore[arg-type]
        for env_id in (task, definition.base)
    )
    columns = list(definition.columns)
    assert partial.spaces.observation_size == len(columns) < original.spaces.observation_size
    assert describe_env(EnvConfig(id=task, engine=name)).observation_size == len(columns)  # type: ignore[arg-type]
    assert np.array_equal(partial.reset(), original.reset()[:, columns])
    actions = actions_of(partial.spaces, 150, 2)
    for row in actions[:100]:
        step, full_step = partial.step(row), original.step(row)
        assert np.array_equal(step[0], full_step[0][:, columns])
        assert all(np.array_equal(part, same) for part, same in zip(step[1:], full_step[1:], strict=True))
    if not partial.restarts_episodes:
        fresh = make_engine(EnvConfig(id=task, engine=name, count=2), 3, 0, 1)  # type: ignore[arg-type]
        rows = fresh.restore({key: value.copy() for key, value in partial.state().items()})
        assert np.array_equal(rows, step[0])
        for part, same in zip(trajectory(fresh, actions[100:]), trajectory(partial, actions[100:]), strict=True):
            assert all(left.tobytes() == right.tobytes() for left, right in zip(part, same, strict=True))
        fresh.close()
    partial.close()
    original.close()


def test_remaining_columns_are_positions() -> None:
    env = make_one(EnvConfig(id="cartpole-no-velocity"))
    observation, _ = env.reset(seed=1)
    assert np.array_equal(observation, env.unwrapped.state[[0, 2]].astype(np.float32))  # type: ignore[attr-defined]
    env = make_one(EnvConfig(id="pendulum-no-velocity"))
    observation, _ = env.reset(seed=1)
    assert np.allclose(np.hypot(*observation), 1)


@pytest.mark.extra("envpool")
def test_auto_chooses_the_engine_of_the_original() -> None:
    for task, definition in NO_VELOCITY_TASKS.items():
        for count in (1, 4, 8, 64):
            assert choose_engine(task, count) == choose_engine(definition.base, count)
    assert choose_engine("cartpole-no-velocity", 8) == "gymnasium-vector"


def test_the_tasks_are_listed() -> None:
    assert set(NO_VELOCITY_TASKS) <= {
        entry.env_id for entry in known_environments() if entry.family == "tasks of lockstep"
    }


def test_options_are_those_of_the_original() -> None:
    env = make_one(EnvConfig(id="pendulum-no-velocity", options={"g": 3.0}))
    assert env.unwrapped.g == 3.0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"^env.options has 'gravityy', which CartPole-v1 does not take$"):
        describe_env(EnvConfig(id="cartpole-no-velocity", options={"gravityy": 1}))


@pytest.mark.parametrize("task", list(NO_VELOCITY_TASKS))
def test_the_tasks_can_be_rendered(task: str) -> None:
    for module in (REQUIRED_MODULES.get(task), "pygame"):
        if module:
            pytest.importorskip(module)
    env = make_one(EnvConfig(id=task), render_mode="rgb_array")
    env.reset(seed=1)
    frame = env.render()
    assert isinstance(frame, np.ndarray)
    assert frame.dtype == np.uint8
    assert frame.ndim == 3
    env.close()

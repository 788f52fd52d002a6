"""Tasks without velocities are their originals, of which some columns are seen."""

import numpy as np
import pytest
from tests.envs.test_engines import actions_of, trajectory

from lockstep.envs.catalog import describe_env, known_ids, make_engine, make_one
from lockstep.envs.choice import choose_engine
from lockstep.envs.settings import EnvConfig
from lockstep.envs.tasks.hidden import HIDDEN

NEEDS = {"lunarlander-no-velocity": "Box2D"}
ENGINES = ["gymnasium", "gymnasium-async", "gymnasium-vector", "envpool"]


@pytest.mark.parametrize("task", list(HIDDEN))
@pytest.mark.parametrize("name", ENGINES)
def test_a_task_is_its_original_without_some_columns(task: str, name: str) -> None:
    for module in (NEEDS.get(task), "envpool" if name == "envpool" else None):
        if module:
            pytest.importorskip(module)
    if name == "gymnasium-vector" and task != "cartpole-no-velocity":
        pytest.skip("has no batched version")
    hidden = HIDDEN[task]
    one, other = (make_engine(EnvConfig(id=env_id, engine=name, count=2), 3, 0, 1) for env_id in (task, hidden.base))  # type: ignore[arg-type]
    kept = list(hidden.columns)
    assert one.spaces.observation_size == len(kept) < other.spaces.observation_size
    assert describe_env(EnvConfig(id=task, engine=name)).observation_size == len(kept)  # type: ignore[arg-type]
    assert np.array_equal(one.reset(), other.reset()[:, kept])
    actions = actions_of(one.spaces, 150, 2)
    for row in actions[:100]:
        seen, whole = one.step(row), other.step(row)
        assert np.array_equal(seen[0], whole[0][:, kept])
        assert all(np.array_equal(part, same) for part, same in zip(seen[1:], whole[1:], strict=True))
    if not one.renews:
        fresh = make_engine(EnvConfig(id=task, engine=name, count=2), 3, 0, 1)  # type: ignore[arg-type]
        rows = fresh.restore({key: value.copy() for key, value in one.state().items()})
        assert np.array_equal(rows, seen[0])
        for part, same in zip(trajectory(fresh, actions[100:]), trajectory(one, actions[100:]), strict=True):
            assert all(left.tobytes() == right.tobytes() for left, right in zip(part, same, strict=True))
        fresh.close()
    one.close()
    other.close()


def test_velocities_are_what_is_hidden() -> None:
    """A kept number changes with a step by a velocity's share; what is hidden would be seen at once."""
    env = make_one(EnvConfig(id="cartpole-no-velocity"))
    seen, _ = env.reset(seed=1)
    assert np.array_equal(seen, env.unwrapped.state[[0, 2]].astype(np.float32))  # type: ignore[attr-defined]
    env = make_one(EnvConfig(id="pendulum-no-velocity"))
    seen, _ = env.reset(seed=1)
    assert np.allclose(np.hypot(*seen), 1)


@pytest.mark.extra("envpool")
def test_the_fastest_engine_is_that_of_the_original() -> None:
    for task, hidden in HIDDEN.items():
        for count in (1, 4, 8, 64):
            assert choose_engine(task, count) == choose_engine(hidden.base, count)
    assert choose_engine("cartpole-no-velocity", 8) == "gymnasium-vector"


def test_they_are_listed() -> None:
    assert set(HIDDEN) <= {line.env_id for line in known_ids() if line.family == "tasks of lockstep"}


def test_options_are_the_originals() -> None:
    env = make_one(EnvConfig(id="pendulum-no-velocity", options={"g": 3.0}))
    assert env.unwrapped.g == 3.0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"^env.options has 'gravityy', which CartPole-v1 does not take$"):
        describe_env(EnvConfig(id="cartpole-no-velocity", options={"gravityy": 1}))


@pytest.mark.parametrize("task", list(HIDDEN))
def test_they_can_be_drawn(task: str) -> None:
    for module in (NEEDS.get(task), "pygame"):
        if module:
            pytest.importorskip(module)
    env = make_one(EnvConfig(id=task), render_mode="rgb_array")
    env.reset(seed=1)
    frame = env.render()
    assert isinstance(frame, np.ndarray)
    assert frame.dtype == np.uint8
    assert frame.ndim == 3
    env.close()

"""Vector environments of users: autoreset modes, environments that do not keep their promises, state, and single environments."""

import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import RecordEpisodeStatistics
from tests.envs import sample_environments
from tests.envs.sample_vectors import WALK, Walk, register

import lockstep
from lockstep.envs.catalog import check_autoreset, describe_env, make_engine, make_one, restarts_episodes
from lockstep.envs.checking import check_env
from lockstep.envs.choice import choose_engine
from lockstep.envs.engine import Engine, EnvironmentFailed
from lockstep.envs.functions import register_function
from lockstep.envs.settings import EnvConfig

register()
MODES = ["NEXT_STEP", "SAME_STEP", "DISABLED"]
RESTORABLE = WALK.replace("Walk", "Restorable")


def config_of(env_id: str = WALK, **options: Any) -> EnvConfig:
    return EnvConfig(env_id, "gymnasium-vector", 8, options=options)


def check(config: EnvConfig) -> None:
    describe_env(config)
    check_autoreset(config)


def played(engine: Engine, steps: int, first: int = 0) -> list[list[Any]]:
    """Take deterministic actions and return copies of the results."""
    rows = []
    for step in range(first, first + steps):
        actions = (np.arange(4) * 7 + step) % 3
        rows.append([np.array(part) for part in engine.step(actions)])
    return rows


def same(first: Any, second: Any) -> bool:
    return all(
        a.tobytes() == b.tobytes() for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize("mode", MODES)
def test_rows_follow_the_table_of_episode_ends_in_every_mode(mode: str) -> None:
    engine = make_engine(config_of(mode=mode), 1, 0, 2)
    assert engine.reset().tolist() == [[0, 0], [1, 0], [2, 0], [3, 0]]
    rows = played(engine, 6)
    # environment 0 takes the actions 0, 1, 2, is reset, and takes 1 and 2
    assert [row[0][0].tolist() for row in rows] == [[0, 1], [1, 2], [3, 3], [0, 0], [1, 1], [3, 2]]
    assert [row[1][0] for row in rows] == [1, 3, 5, 0, 2, 4]
    assert [bool(row[2][0]) for row in rows] == [False, False, True, False, False, False]
    assert [bool(row[3][1]) for row in rows] == [False, False, False, True, False, False]
    assert rows[3][0][1].tolist() == [1 + 1 + 2 + 0 + 1, 4]  # the last observation of environment 1
    assert rows[4][0][1].tolist() == [1, 0]


@pytest.mark.parametrize("mode", MODES[1:])
@pytest.mark.parametrize("make", [Walk, "sync"])
def test_all_modes_give_the_same_episodes(mode: str, make: Any) -> None:
    def sync(num_envs: int, mode: str) -> Any:
        return SyncVectorEnv(
            [lambda: gym.make("Pendulum-v1", max_episode_steps=5)] * num_envs, autoreset_mode=AutoresetMode[mode]
        )

    env_id = register_function(Walk if make is Walk else sync)
    results = []
    for each in ("NEXT_STEP", mode):
        engine = make_engine(config_of(env_id, mode=each), 1, 0, 2)
        engine.reset()
        actions = np.zeros((4, 1), np.float32) if make == "sync" else np.ones(4, np.int64)
        results.append([[np.array(part) for part in engine.step(actions)] for _ in range(7 if make == "sync" else 20)])
        engine.close()
    if make == "sync":  # the first episodes are equal; masked resets draw more random numbers, so later ones are others
        assert same(results[0][:5], results[1][:5])
        assert [row[3].tolist() for row in results[0]] == [row[3].tolist() for row in results[1]]
        assert results[1][5][1].tolist() == [0] * 4
    else:
        assert same(*results)


@pytest.mark.parametrize("mode", MODES[1:])
def test_a_reset_may_clear_the_arrays_that_step_has_returned(mode: str) -> None:
    results = []
    for fault in ("", "reused"):
        engine = make_engine(config_of(mode=mode, fault=fault), 1, 0, 2)
        engine.reset()
        results.append(played(engine, 12))
    assert same(*results)


def test_masks_of_other_environments_survive_the_end_of_an_episode() -> None:
    """With same-step autoreset, Gymnasium's `final_info` has zeros for environments whose episodes go on."""

    class Masked(gym.Env[Any, Any]):
        observation_space, action_space = gym.spaces.Box(0, 9, (1,), np.float32), gym.spaces.Discrete(2)

        def __init__(self, length: int) -> None:
            self.length = length

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.steps = 0
            return np.zeros(1, np.float32), {"action_mask": np.array([1, 0], np.int8)}

        def step(self, action: Any) -> Any:
            self.steps += 1
            infos = {"action_mask": np.array([1, 0], np.int8)}
            return np.ones(1, np.float32), 1.0, self.steps == self.length, False, infos

    def make(num_envs: int) -> Any:
        lengths = range(2, 2 + num_envs)
        return SyncVectorEnv([lambda n=n: Masked(n) for n in lengths], autoreset_mode=AutoresetMode.SAME_STEP)

    engine = make_engine(config_of(register_function(make)), 1, 0, 2)
    engine.reset()
    for _ in range(6):
        observations, *_ = engine.step(np.zeros(4, np.int64))
        assert observations[:, 1:].tolist() == [[1, 0]] * 4


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", ["Parts", "Mixed", "Image"])
def test_structures_masks_and_images_in_every_mode(name: str, mode: str) -> None:
    sample_environments.register()

    def make(num_envs: int) -> Any:
        return SyncVectorEnv([lambda: sample_environments.make(name)] * num_envs, autoreset_mode=AutoresetMode[mode])

    engine = make_engine(config_of(register_function(make)), 1, 0, 2)
    engine.reset()
    spaces = engine.spaces
    actions = np.zeros(4, np.int64) if spaces.discrete_actions else np.zeros((4, spaces.action_size), np.float32)
    rewards = [engine.step(actions)[1].copy() for _ in range(10)]
    assert [bool(row.any()) for row in rewards][7] is False


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fault": "steps on"}, "returned a reward or an end from the step after the end of an episode"),
        ({"fault": "final_obs"}, "returned final_obs, which belongs to same-step autoreset, but metadata.* is NEXT_STEP"),
        ({"fault": "no final_obs", "mode": "SAME_STEP"}, "returned no final_obs at the end of an episode, but .* is SAME_STEP"),
        ({"fault": "mask", "mode": "DISABLED"}, r"ignored options\['reset_mask'\] of reset"),
        ({"fault": "mask", "mode": "SAME_STEP"}, r"ignored options\['reset_mask'\] of reset"),
        ({"fault": "rewards"}, r"returned rewards of shape \(4, 1\) and type float64, expected \(4,\) real numbers"),
        ({"fault": "flags"}, r"returned terminated of shape \(4,\) and type int64, expected \(4,\) bool"),
        ({"fault": "shape"}, r"returned an observation outside its observation space: got ndarray of shape \(4, 1\)"),
        ({"fault": "old step"}, "returned no .observations, rewards, terminated, truncated, infos. from step"),
        ({"fault": "raise"}, "failed: RuntimeError: user's fault"),
    ],
)  # fmt: skip
def test_a_broken_promise_is_an_error_of_one_line(options: dict[str, Any], words: str) -> None:
    engine = make_engine(config_of(**options), 1, 1, 2)
    engine.reset()
    with pytest.raises(EnvironmentFailed, match=words) as caught:
        played(engine, 12)
    assert str(caught.value).startswith(f"environments 4 to 7 ({WALK}): the vector version ")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": ""}, r"env.id is .*: metadata\['autoreset_mode'\] of its vector environment is None; it must be a"),
        ({"fault": "count"}, "its vector environment has num_envs 2, but 1 were asked for"),
        ({"fault": "quiet"}, "is NEXT_STEP, but the step after the end of an episode depends on the action"),
        (
            {"fault": "at once", "mode": "DISABLED", "noise": 0.5},
            "is DISABLED, but the step in which an episode ends returns the first obs",
        ),
        ({"speed": 1}, "env.options has 'speed', which .* does not take"),
    ],
)
def test_an_environment_is_refused_before_training(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        check(config_of(**options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fault", "words"),
    [("dtype", "type float64, expected Box"), ("old reset", "returned ndarray from reset")],
)
def test_a_wrong_reset_is_refused_before_training(fault: str, words: str) -> None:
    with pytest.raises(EnvironmentFailed, match=words):
        check(config_of(fault=fault))


@pytest.mark.parametrize("mode", MODES)
def test_state_restores_the_middle_of_episodes(mode: str) -> None:
    config = config_of(RESTORABLE, mode=mode, noise=0.5)
    assert not restarts_episodes(config)
    engine, restored = (make_engine(config, 1, 1, 2) for _ in range(2))
    engine.reset()
    played(engine, 4)  # one of the environments is waiting for its reset
    state = {name: np.array(value) for name, value in engine.state().items()}
    observations = restored.restore(state)
    assert same([played(engine, 1)[0]], [played(restored, 1)[0]])
    assert same(played(engine, 20, 1), played(restored, 20, 1))
    assert observations.shape == (4, 2)
    with pytest.raises(ValueError, match="the checkpoint does not hold the state of 4 environments"):
        restored.restore({**state, "env.state": state["env.state"][:2]})


def test_engines_without_state_begin_new_episodes_with_the_same_bits() -> None:
    config = config_of(noise=0.5)
    assert restarts_episodes(config)
    engines = [make_engine(config, 1, 1, 2) for _ in range(2)]
    played_before = [engines[0].reset(), *played(engines[0], 5)]
    assert played_before
    assert np.array_equal(*(engine.restart_episodes(3) for engine in engines))
    assert same(*(played(engine, 10) for engine in engines))


def test_a_single_environment_of_a_vector_environment() -> None:
    assert choose_engine(WALK, 1) == "gymnasium-vector"
    env = make_one(EnvConfig(WALK, options={"mode": "SAME_STEP"}))
    for _ in range(2):
        observation, _ = env.reset(seed=1)
        steps = [env.step(2) for _ in range(3)]
        assert observation.tolist() == [0, 0]
        assert steps[-1][0].tolist() == [6, 3]
        assert steps[-1][1:4] == (5.0, True, False)
    engine = make_engine(EnvConfig(WALK, "gymnasium", 4), 1, 0, 1)
    engine.reset()
    assert played(engine, 3)[-1][2].all()


def recorded(num_envs: int) -> Any:
    """Return walks whose infos have a nested dict at the end of an episode."""
    return RecordEpisodeStatistics(Walk(num_envs))


class Announced(Walk):
    """Walks with same-step autoreset, whose infos have a name with a mask in every step, and the last info at the end of an episode."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs, "SAME_STEP")

    def step(self, actions: Any) -> Any:
        *step, infos = super().step(actions)
        ended = step[2] | step[3]
        infos |= {"success": ended.astype(np.float64), "_success": ended.copy()}
        if ended.any():
            infos |= {
                "final_info": {"success": ended.astype(np.float64), "_success": ended.copy()},
                "_final_info": ended,
            }
        return *step, infos


@pytest.mark.parametrize("make", [recorded, Announced])
def test_single_environment_of_infos_with_structure(make: Any) -> None:
    assert {finding.level for finding in check_env(make)} <= {"ok", "note"}
    env = make_one(EnvConfig(register_function(make)))
    env.reset(seed=1)
    infos = [env.step(2)[4] for _ in range(3)]
    assert infos[0].keys() == infos[1].keys() == set()
    if make is recorded:
        assert infos[2]["episode"]["l"] == 3
    else:
        assert infos[2] == {"success": 1.0}


def test_checks_of_a_vector_environment() -> None:
    findings = {finding.name: finding for finding in check_env(RESTORABLE, noise=0.1)}
    assert findings["vector"].level == "ok", findings
    assert check_env(WALK)[-1].text == "without get_state and set_state, episodes are cut at every checkpoint"
    assert [finding.level for finding in check_env(WALK, fault="quiet") if finding.name == "vector"] == ["fail"]


def test_functions_of_num_envs_and_their_errors(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"rollout.steps": 16, "run.progress": "off", "runtime.compile": "off", "out": tmp_path}
    run = lockstep.train(env=Walk, total_steps=256, **settings)
    assert run.config.env.engine == "gymnasium-vector"
    assert lockstep.evaluate(run, episodes=2).lengths == [3, 3]
    for make, words in (
        (Walk(1), "env is an instance of Walk"),
        (lambda: Walk(2), "the function returned a Walk, a vector environment: it must take the number of environments as num_envs"),
        (lambda num_envs: gym.make("CartPole-v1"), "the function takes num_envs, but returned '.*', which is not a gymnasium.vector.VectorEnv"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            lockstep.train(env=make, total_steps=256, **settings)


@pytest.mark.parametrize(
    ("options", "rc", "words"),
    [
        (
            "{mode: NEXT_STEP, fault: quiet}",
            2,
            r"env.id is .*Walk-v0': metadata\['autoreset_mode'\] .* must only reset",
        ),
        (
            "{mode: DISABLED, fault: raise}",
            1,
            r"environment 0 .*: the vector version failed: RuntimeError: user's fault",
        ),
        ("{mode: SAME_STEP, fault: nan}", 3, r"reward.*environment 1 "),
        (
            "{mode: SAME_STEP, fault: mask}",
            2,
            r"env.id is .*Walk-v0': reset of its .* also where options\['reset_mask'\] is False",
        ),
    ],
)
def test_errors_on_the_command_line(run_cli, tmp_path: Path, root: Path, options: str, rc: int, words: str) -> None:
    (tmp_path / "walks.py").write_text(
        f"import sys; sys.path.append({str(root)!r})\nfrom tests.envs.sample_vectors import *\nregister()\n"
    )
    command = ("train", "--env.module", "walks", "--env", WALK, "--env.options", options, "--total-steps", 512)
    done = run_cli(*command, "--rollout.steps", 32, "--run.progress", "off", "--runtime.compile", "off")
    assert done.rc == rc, done
    line = done.stderr.strip().splitlines()[-1]
    assert re.search(words, line), line
    assert ('raise RuntimeError("user\'s fault")' in done.stderr) == ("fault: raise" in options), (
        "the user's code is shown"
    )

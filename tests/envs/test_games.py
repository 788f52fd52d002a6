"""Parallel environments of PettingZoo: agents that come and go, errors, replay, turns, and training with one policy."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.live_runs import digests

import lockstep
from lockstep.envs.catalog import describe_env, has_time_limit, make_engine, make_one
from lockstep.envs.checking import check_env
from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.functions import register_function
from lockstep.envs.settings import EnvConfig

SPREAD = "mpe2/simple_spread_v3"
SMALL: dict[str, Any] = {
    "total_steps": 1024,
    "run.checkpoint_every": 1,
    "rollout.steps": 32,
    "run.progress": "off",
    "runtime.compile": "off",
    "plan": {"shards": 2},
}


class Visit:
    """Game of 6 steps. `early` ends at step 2 (terminated), `late` comes with step 3, and all others are truncated at the end.

    An observation is the number of the step and that of the agent; `fault` names what is wrong.
    """

    def __init__(self, fault: str = "") -> None:
        self.possible_agents = ["early", "late", "stays"]
        self.metadata: dict[str, Any] = {}
        self.fault = fault
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Box(0, 9, (3 if self.fault == "space" and agent == "late" else 2,), np.float32)

    def action_space(self, agent: str) -> gym.Space[Any]:
        return gym.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.noise = float(np.random.default_rng(seed).uniform())
        self.steps, self.agents = 0, ["early", "stays"] if self.fault != "empty" else []
        return self.seen(self.agents), {}

    def seen(self, agents: list[str]) -> dict[str, Any]:
        size = 3 if self.fault == "shape" and self.steps else 2
        return {agent: np.full(size, [self.steps, self.noise][:1], np.float32) for agent in agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents)
        self.steps += 1
        acted = list(self.agents)
        rewards = {agent: 1.0 + actions[agent] + self.noise for agent in acted}
        terminated = {agent: agent == "early" and self.steps == 2 for agent in acted}
        truncated = dict.fromkeys(acted, self.steps == 6)
        if self.fault != "stays":
            left = ["stays"] if self.fault == "leaves" else []
            self.agents = [agent for agent in acted if not (terminated[agent] or truncated[agent] or agent in left)]
        came = ["late"] if self.steps == 3 else []
        self.agents += came
        if self.fault == "reward":
            del rewards["stays"]
        return self.seen(acted + came), rewards, terminated, truncated, {}

    def render(self) -> None: ...

    def close(self) -> None: ...


def config_of(count: int = 6, **options: Any) -> EnvConfig:
    names = ("return/early", "return/late", "return/stays")
    return EnvConfig(register_function(Visit), "pettingzoo", count, options=options, info_metrics=names)


def played(engine: Any, steps: int) -> list[list[Any]]:
    zeros = np.zeros(6, np.int64)
    return [[*map(np.array, engine.step(zeros)), engine.infos.copy()] for _ in range(steps)]


def test_agents_that_come_and_go() -> None:
    engine = make_engine(config_of(), 1, 0, 1)
    engine.reset()
    assert engine.absent.tolist() == [False, True, False] * 2
    rows = played(engine, 8)
    ended = np.array([row[2] | row[3] for row in rows])
    # early ends at step 2 and waits for the reset in step 7; late is absent until step 3, and after the reset
    assert ended[:, 0].tolist() == [False, True, True, True, True, True, False, False]
    assert ended[:, 1].tolist() == [True, True, False, False, False, True, True, True]
    assert ended[:, 2].tolist() == [False] * 5 + [True, False, False]
    assert [row[3][2] for row in rows][5]
    assert not rows[5][2][2]
    rewards = np.array([row[1] for row in rows])
    assert (rewards[2:7, 0] == 0).all()
    assert (rewards[:3, 1] == 0).all()
    assert rows[2][0][1].tolist() == [3, 3]  # the first observation of late
    infos = rows[5][4]
    assert np.isnan(infos[2, :2]).all()
    assert infos[2, 2] == pytest.approx(rewards[:6, 2].sum())


@pytest.mark.parametrize("steps", [1, 2, 4, 6, 7, 9])
def test_games_are_restored_by_replay(steps: int) -> None:
    engine, restored = (make_engine(config_of(), 1, 0, 1) for _ in range(2))
    engine.reset()
    played(engine, steps)
    restored.restore({name: np.array(value) for name, value in engine.state().items()})
    for row, other in zip(played(engine, 12), played(restored, 12), strict=True):
        assert all(a.tobytes() == b.tobytes() for a, b in zip(row, other, strict=True))


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("stays", "still has early in agents after its episode ended"),
        ("leaves", "no longer has stays in agents, although its episode has not ended"),
        ("reward", "returned no reward of stays, which is in agents"),
        ("shape", r"returned an observation outside its observation space: got ndarray of shape \(3,\)"),
    ],
)
def test_a_game_that_violates_the_api_is_named(fault: str, words: str) -> None:
    engine = make_engine(config_of(fault=fault), 1, 0, 1)
    engine.reset()
    with pytest.raises(EnvironmentFailed, match=rf"^game 0 \(.*\) {words}"):
        played(engine, 3)


def test_bad_input_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the observations of early are Box.* and those of late are Box"):
        describe_env(config_of(fault="space"))
    with pytest.raises(ValueError, match="its reset left no agents in the game"):
        describe_env(config_of(fault="empty"))
    game = Visit()
    with pytest.raises(ValueError, match="returned the same environment twice"):
        make_engine(EnvConfig(register_function(lambda: game), "pettingzoo", 6), 1, 0, 1)
    with pytest.raises(ValueError, match=r"needs a pettingzoo.ParallelEnv with possible_agents, not 'CartPoleEnv'"):
        describe_env(EnvConfig("CartPole-v1", "pettingzoo"))
    for settings, words in (
        ({"env": Visit}, "which has several agents: set env.engine to 'pettingzoo'"),
        ({"env": {"id": Visit, "engine": "pettingzoo", "count": 8}}, "must be a multiple of 6, such as 12"),
        ({"env": {"id": Visit, "engine": "pettingzoo", "count": 6}, "curiosity": {"kind": "rnd"}}, "does not support"),
    ):
        with pytest.raises(ValueError, match=words):
            lockstep.train(**SMALL, out=tmp_path, **settings)


def test_a_registered_game_without_the_engine_names_it() -> None:
    gym.register("Visit-v0", Visit)  # type: ignore[arg-type]
    try:
        with pytest.raises(
            ValueError,
            match=r"^env.id is 'Visit-v0': the environment has several agents; set env.engine to 'pettingzoo'$",
        ):
            describe_env(EnvConfig("Visit-v0", "gymnasium"))
        describe_env(EnvConfig("Visit-v0", "pettingzoo"))
    finally:
        del gym.registry["Visit-v0"]


def test_absent_agents_are_no_episodes_and_a_run_resumes_exactly(tmp_path: Path) -> None:
    env = {"id": Visit, "engine": "pettingzoo", "count": 6}
    settings = {**SMALL, "total_steps": 1152, "out": tmp_path}
    run = lockstep.train(env=env, **settings, name="a")
    rows = run.metrics
    assert all(row["length_mean"] == pytest.approx(11 / 3, abs=0.2) for row in rows)  # 2, 3 and 6 steps
    assert {name for name in rows[-1] if name.startswith("info/")} == {
        f"info/return/{name}" for name in Visit().possible_agents
    }
    before = run.digest
    assert lockstep.resume(run, iteration=4).digest == before
    assert lockstep.evaluate(run, episodes=2).lengths == [11, 11]


@pytest.mark.slow
@pytest.mark.extra("pettingzoo", "mpe2")
def test_a_game_of_pettingzoo_on_the_command_line(run_cli, tmp_path: Path) -> None:
    words = ("--env", SPREAD, "--env.count", 12, "--rollout.steps", 32, "--total-steps", 768, "--plan.shards", 2)
    for name, ranks, plan in (("one", 1, "coupled"), ("two", 2, "1:1")):
        where = ("--name", name, "--ranks", ranks, "--plan.kind", plan, "--run.progress", "off")
        done = run_cli("train", *words, *where, "--runtime.compile", "off")
        assert done.rc == 0, done
    assert digests(tmp_path / "runs" / "one") == digests(tmp_path / "runs" / "two")
    done = run_cli("eval", "one", "--episodes", 1)
    assert "length  75" in done.stdout, done
    done = run_cli("train", "--env", "mpe2/simple_spred_v3")
    assert (done.rc, "did you mean mpe2/simple_spread_v3?" in done.stderr) == (2, True), done


@pytest.mark.extra("pettingzoo", "mpe2")
def test_agents_take_turns_in_a_single_environment() -> None:
    env = make_one(EnvConfig(SPREAD, "pettingzoo"))
    env.reset(seed=1)
    steps = [env.step(0) for _ in range(75)]
    assert [number for number, step in enumerate(steps) if step[2] or step[3]] == [74]
    assert sum(1 for step in steps if step[1] != 0) == 25
    assert has_time_limit(EnvConfig(SPREAD, "pettingzoo"))
    [played] = [finding for finding in check_env(SPREAD) if finding.name == "episodes"]
    assert (played.level, "75 steps" in played.text) == ("ok", True)


def test_function_of_a_game_is_checked() -> None:
    findings = {finding.name: finding.level for finding in lockstep.check_env(Visit)}
    assert findings["resume"] == findings["determinism"] == "ok"
    assert "fail" not in findings.values()

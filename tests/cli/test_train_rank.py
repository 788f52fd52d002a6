"""Error messages of a rank."""

from pathlib import Path

import pytest

from lockstep.algorithm.non_finite import NonFinite
from lockstep.cli.train_rank import _guarded
from lockstep.envs.engine import EnvironmentFailed
from lockstep.group.group import RankLost


def step() -> None:
    raise KeyError("wheel")


def fail_in_an_environment() -> int:
    try:
        step()
    except KeyError as error:
        raise EnvironmentFailed("environment 3 (Car-v0) failed: KeyError: 'wheel'") from error
    return 0


def test_environment_error_is_one_line_after_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert _guarded(1, fail_in_an_environment) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "    step()" in lines
    assert lines[-2:] == ["KeyError: 'wheel'", "lockstep: environment 3 (Car-v0) failed: KeyError: 'wheel'"]
    assert len(lines) < 10


def raising(error: Exception):
    def work() -> int:
        raise error

    return work


def test_error_that_all_ranks_raise_is_printed_by_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert [_guarded(rank, raising(NonFinite("too large"))) for rank in range(3)] == [3, 3, 3]
    assert capsys.readouterr().err == "lockstep: too large\n"
    assert _guarded(2, raising(RankLost("rank 0", "record", "it slept"))) == 4
    assert capsys.readouterr().err == "lockstep: rank 0 is lost in phase 'record': it slept\n"


def test_a_rank_that_has_reported_its_own_error_is_not_reported_as_lost(capsys: pytest.CaptureFixture[str]) -> None:
    error = RankLost("rank 0", "statistics", "its process has ended")
    error.reported = True
    assert _guarded(1, raising(error)) == 4
    assert capsys.readouterr().err == ""


def test_message_with_newlines_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert _guarded(1, raising(EnvironmentFailed("environment 3 (Car-v0) failed: KeyError: a\n  b"))) == 1
    assert capsys.readouterr().err == "lockstep: environment 3 (Car-v0) failed: KeyError: a b\n"


FAULT = """
import os

import gymnasium

from lockstep.algorithm.agent import Agent

gymnasium.register("Pole-v0", "gymnasium.envs.classic_control.cartpole:CartPoleEnv", max_episode_steps=500)
if os.environ.get("LOCKSTEP_RANK") == "1":
    Agent.digest = lambda agent: "0" * 64
"""


@pytest.mark.slow
def test_trainers_that_differ_are_reported_in_one_line(run_cli, tmp_path: Path) -> None:
    (tmp_path / "fault.py").write_text(FAULT)
    words = ("--env.module", "fault", "--total-steps", 512, "--rollout.steps", 32, "--plan.shards", 2, "--ranks", 2)
    done = run_cli("train", *words, "--run.progress", "off", "--restarts", 0)
    assert done.rc == 5, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("lockstep: ranks 0, 1 hold different weights after iteration 1: resume the run")


FAILING = """
import os

import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv


class Failing(CartPoleEnv):
    steps = 0

    def step(self, action):
        Failing.steps += 1
        if Failing.steps > 200 and os.environ.get("LOCKSTEP_RANK") == "1":
            raise RuntimeError("the motor is too hot")
        return super().step(action)


gymnasium.register("Failing-v0", Failing, max_episode_steps=500)
"""


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("auto",), ("gloo",), ("gloo", "--runtime.kind", "fabric")], ids="-".join)
def test_environment_error_of_one_rank_is_the_only_line(run_cli, tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "failing.py").write_text(FAILING)
    words = ("--env.module", "failing", "--total-steps", 4096, "--rollout.steps", 32, "--plan.shards", 2, "--ranks", 2)
    done = run_cli("train", *words, "--runtime.backend", *flags, "--run.progress", "off", "--restarts", 0)
    assert done.rc == 1, done
    lines = [line for line in done.stderr.splitlines() if line.startswith("lockstep: ")]
    assert len(lines) == 1, done.stderr
    assert lines[0].endswith("(Failing-v0) failed: RuntimeError: the motor is too hot")

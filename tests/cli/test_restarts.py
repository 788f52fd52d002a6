"""Runs that go on by themselves after a fault, from the command line: same digest, one command."""

import os
import signal
from pathlib import Path

import pytest
from tests.live_runs import digests, ranks_of, reached, wait_for

from lockstep.run.folder import RunFolder
from lockstep.telemetry.attempts import read_starts

FAULTY = """
import ctypes, os, signal, time
from pathlib import Path
import gymnasium as gym

class Faulty(gym.Wrapper):
    '''CartPole that fails in its step number `at`, once if `mark` names a file, and not before there is a folder `saved`.'''

    def __init__(self, kind, at, mark=None, saved=None):
        super().__init__(gym.make("CartPole-v1"))
        self.kind, self.left, self.mark, self.saved = kind, at, mark, saved

    def step(self, action):
        self.left -= 1
        if self.left == 0 and (self.mark is None or not Path(self.mark).exists()):
            if self.mark:
                Path(self.mark).touch()
            while self.saved and not Path(self.saved).exists():
                time.sleep(0.01)
            if self.kind == "hang":
                time.sleep(1000)
            if self.kind == "segfault":
                ctypes.string_at(0)
            if self.kind == "exit":
                os._exit(75)
            if self.kind == "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
        return self.env.step(action)

gym.register("Faulty-v0", Faulty)
"""
SIZE = ("--plan.shards", 2, "--env.count", 4, "--rollout.steps", 32)
WORDS = ("train", *SIZE, "--ppo.epochs", 2)
ENDLESS = (*WORDS, "--env", "CartPole-v1", "--total-steps", 10**6, "--runtime.compile", "off")
ITERATIONS = 8
SHAPE = ("--total-steps", 128 * ITERATIONS, "--run.checkpoint-every", 3, "--run.progress", "off")


def faulty(tmp_path: Path, kind: str, *, at: int = 140, once: bool = True) -> list[object]:
    """Return flags for an environment that fails in iteration 5, with `once` after the run `faulty` has its first checkpoint."""
    (tmp_path / "faulty_env.py").write_text(FAULTY)
    mark = f", mark: {tmp_path / 'mark'}, saved: {tmp_path / 'faulty/checkpoints/00000003'}" if once else ""
    return ["--env", "Faulty-v0", "--env.module", "faulty_env", "--env.options", f"{{kind: {kind}, at: {at}{mark}}}"]


@pytest.mark.parametrize(
    ("kind", "ranks", "text"),
    [
        ("exit async", 1, "(exit code 75) of Faulty-v0 died during step"),
        ("hang", 1, "made no progress for 2 s in stage rollout, iteration 5, environment"),
        ("segfault", 2, "was killed by SIGSEGV"),
        pytest.param("exit", 2, "ended with exit code 75, before the end of training", marks=pytest.mark.exhaustive),
        pytest.param("hang", 2, "made no progress for 2 s", marks=pytest.mark.exhaustive),
        pytest.param("stop", 2, "was stopped by a signal for 2 s", marks=pytest.mark.exhaustive),
        pytest.param("segfault", 1, "was killed by SIGSEGV", marks=pytest.mark.exhaustive),
    ],
)
def test_run_goes_on_after_a_fault_of_an_environment(run_cli, tmp_path: Path, kind: str, ranks: int, text: str) -> None:
    kind, _, engine = kind.partition(" ")
    flags = faulty(tmp_path, kind)
    words = [*WORDS, *SHAPE, *flags, "--out", tmp_path, "--ranks", ranks, "--runtime.timeout", 2]
    words += ["--env.engine", "gymnasium-async" if engine else "gymnasium"]
    finished = run_cli(*words, "--name", "faulty")
    assert finished.rc == 0, finished
    assert text in finished.stderr
    assert "again from iteration 3 (restart 1 of 3)" in finished.stderr
    assert f"done: {ITERATIONS} iterations" in finished.stdout
    whole = run_cli(*words, "--name", "whole", "--restarts", 0)  # the environment fails once
    assert whole.rc == 0, whole
    assert digests(tmp_path / "faulty") == digests(tmp_path / "whole")
    first, second = read_starts(RunFolder(tmp_path / "faulty"))
    assert (first.how, second.iteration, second.how) == ("failed", 3, "done")
    assert text in first.why


def test_killed_rank_is_replaced(run_cli, begin, tmp_path: Path) -> None:
    words = [*WORDS, "--env", "CartPole-v1", "--total-steps", 128 * 40, "--run.checkpoint-every", 1, "--out", tmp_path]
    run = tmp_path / "killed"
    process = begin(*words, "--ranks", "1:2", "--name", "killed")
    wait_for(reached(run, 3), "3 iterations")
    os.kill(ranks_of(run)[0], signal.SIGKILL)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, out + err
    assert "was killed by SIGKILL" in err
    assert "starting 2 ranks again from iteration" in err
    assert run_cli(*words, "--ranks", 1, "--name", "whole").rc == 0
    assert digests(run) == digests(tmp_path / "whole")
    assert not ranks_of(run)


def test_fault_that_comes_back_ends_the_run(run_cli, tmp_path: Path) -> None:
    flags = faulty(tmp_path, "exit", once=False, at=20)
    words = [*WORDS, *SHAPE, *flags, "--out", tmp_path, "--name", "run", "--ranks", 1]
    finished = run_cli(*words, "--restarts", 5)
    assert finished.rc == 4, finished
    assert finished.stderr.count("ended with exit code 75, before the end of training") == 2
    assert (
        "not started again: this is the second fault before the end of iteration 1; continue with: lockstep resume"
        in finished.stderr
    )
    assert finished.stderr.splitlines()[-1].endswith(" --env.module faulty_env --restarts 5")


def test_killed_rank_ends_the_run_without_restarts(begin, tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = [*ENDLESS, "--out", tmp_path, "--name", "run", "--ranks", 2]
    process = begin(*words, "--restarts", 0)
    wait_for(reached(run, 3), "3 iterations")
    os.kill(ranks_of(run)[0], signal.SIGKILL)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "again" not in err


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR2])
def test_signals_that_stop_with_a_checkpoint(begin, tmp_path: Path, number: int) -> None:
    run = tmp_path / "run"
    words = [*ENDLESS, "--out", tmp_path, "--name", "run", "--ranks", 1]
    process = begin(*words, "--restarts", 7)
    wait_for(reached(run, 2), "2 iterations")
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 75, out + err
    assert f"with: lockstep resume {run} --restarts 7\n" in out
    assert RunFolder(run).checkpoints()
    assert not ranks_of(run)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--restarts", "-1"), "--restarts is '-1': it must be a whole number, at least 0"),
        (("--ranks", "2:1"), "--ranks is '2:1': it must be a whole number, at least 1, or MIN:MAX, such as 2:4"),
        (("--ranks", "0"), "--ranks is '0': it must be a whole number, at least 1, or MIN:MAX, such as 2:4"),
        (("--ranks", "1:"), "--ranks is '1:': it must be a whole number, at least 1, or MIN:MAX, such as 2:4"),
        (("--ranks", "3:4", "--plan.shards", "2"), "plan.shards is 2: 4 trainers need at least one shard each"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    from lockstep.cli.main import main

    assert main(["train", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"lockstep: {line}")
    assert error.count("\n") == 1

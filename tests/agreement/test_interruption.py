"""Bit-identical results of runs that are killed or stopped, and resumed on another number of ranks."""

import json
import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from tests.live_runs import digests, ranks_of, reached, rows, slow_hook, wait_for

pytestmark = pytest.mark.slow

ITERATIONS = 12
FAST = ("--run.hooks", "none")
"""Flag with which a run that was interrupted is resumed."""
ADAPTIVE = ("--ppo.learning-rate-kl", 0.01)
COSINE = ("--ppo.learning-rate", "cosine(1e-3, 0)")
CASES = {
    "cartpole": ("--env", "CartPole-v1", "--env.engine", "gymnasium-vector"),
    "gymnasium": ("--env", "CartPole-v1", "--env.engine", "gymnasium"),
    "envpool": ("--env", "CartPole-v1", "--env.engine", "envpool"),
    "reacher": (
        *("--env", "Reacher-v5", "--policy.normalize-observations", "--ppo.normalize-rewards", *ADAPTIVE),
        *("--policy.distribution", "beta"),
    ),
    "lunarlander": ("--env", "LunarLander-v3", *ADAPTIVE),
    "lstm": (
        *("--env", "CartPole-v1", "--env.engine", "gymnasium", *COSINE),
        *("--policy.core", "lstm", "--policy.core-size", 16, "--rollout.sequence-length", 8),
    ),
    "ngu": (
        "--env",
        "CartPole-v1",
        "--env.engine",
        "gymnasium",
        "--curiosity.kind",
        "ngu",
        "--curiosity.capacity",
        100,
    ),
    "e3b and envpool": ("--env", "CartPole-v1", "--env.engine", "envpool", "--curiosity.kind", "e3b"),
    "frozenlake": ("--env", "FrozenLake-v1", *COSINE),
}


STEPS = 32
"""Steps of a rollout."""


def words(case: str, run: Path, ranks: int, epochs: int = 2) -> list[object]:
    shape = ["--rollout.steps", STEPS, "--plan.shards", 4, "--ppo.epochs", epochs, "--ppo.minibatches", 4]
    where = ["--out", run.parent, "--name", run.name, "--run.progress", "off", "--total-steps", 8 * STEPS * ITERATIONS]
    return ["train", *CASES[case], *shape, *where, "--run.checkpoint-every", 3, "--ranks", ranks, "--restarts", 0]


def interrupted(case: str, run: Path, ranks: int) -> list[object]:
    """Return the arguments of a run that is slow enough to be interrupted before its end."""
    return [*words(case, run, ranks), *slow_hook(run.parent)]


def train_uninterrupted(run_cli, case: str, run: Path) -> None:
    rc, out, err = run_cli(*words(case, run, 1))
    assert rc == 0, out + err


@pytest.mark.parametrize(
    "case",
    [
        "cartpole",
        pytest.param("gymnasium", marks=pytest.mark.exhaustive),
        pytest.param("envpool", marks=[pytest.mark.extra("envpool"), pytest.mark.exhaustive]),
        pytest.param("reacher", marks=[pytest.mark.extra("mujoco"), pytest.mark.exhaustive]),
        pytest.param("lunarlander", marks=[pytest.mark.extra("Box2D"), pytest.mark.exhaustive]),
        "lstm",
        pytest.param("ngu", marks=pytest.mark.exhaustive),
        pytest.param("e3b and envpool", marks=pytest.mark.extra("envpool")),
        pytest.param("frozenlake", marks=pytest.mark.exhaustive),
    ],
)
def test_killed_run_resumes_on_another_number_of_ranks(run_cli, begin, same, tmp_path: Path, case: str) -> None:
    train_uninterrupted(run_cli, case, tmp_path / "whole")
    run = tmp_path / "killed"
    launcher = begin(*interrupted(case, run, 2))
    wait_for(reached(run, 4), "4 iterations")
    os.kill(ranks_of(run)[0], signal.SIGKILL)
    launcher.communicate(timeout=30)
    assert launcher.returncode == 1
    assert not ranks_of(run)
    assert len(rows(run)) < ITERATIONS, "it was over before the kill: the test shows nothing"
    rc, out, err = run_cli("resume", run, "--ranks", 4, *FAST)
    assert rc == 0, out + err
    same(tmp_path / "whole", run, ITERATIONS)


WARMUP = ("--curiosity.warmup", 9)


@pytest.mark.parametrize("method", [pytest.param("rnd", marks=pytest.mark.exhaustive), "ngu"])
def test_run_killed_during_curiosity_warmup_resumes(run_cli, begin, same, tmp_path: Path, method: str) -> None:
    case = ("--curiosity.kind", method, *WARMUP, "--curiosity.hidden", "8", "--curiosity.feature-size", 8)
    rc, out, err = run_cli(*words("gymnasium", tmp_path / "whole", 1), *case)
    assert rc == 0, out + err
    run = tmp_path / "killed"
    launcher = begin(*interrupted("gymnasium", run, 2), *case)
    wait_for(reached(run, 4), "4 iterations")
    os.kill(ranks_of(run)[0], signal.SIGKILL)
    launcher.communicate(timeout=30)
    assert len(rows(run)) < ITERATIONS, "it was over before the kill: the test shows nothing"
    rc, out, err = run_cli("resume", run, "--iteration", 3, *FAST)  # in the middle of the warm-up
    assert rc == 0, out + err
    same(tmp_path / "whole", run, ITERATIONS)


@pytest.mark.exhaustive
def test_run_resumes_after_two_kills_of_all_processes(run_cli, begin, same, tmp_path: Path) -> None:
    train_uninterrupted(run_cli, "gymnasium", tmp_path / "whole")
    run = tmp_path / "killed"
    launcher = begin(*interrupted("gymnasium", run, 2), cold=True)
    wait_for(reached(run, 4), "4 iterations")
    launcher.kill()
    wait_for(lambda: not ranks_of(run), "no orphan", 5)
    assert len(rows(run)) < ITERATIONS, "the ranks trained on without their launcher"
    launcher = begin("resume", run, "--ranks", 4, "--run.hooks", "slow")
    wait_for(reached(run, 8), "8 iterations")
    launcher.kill()
    wait_for(lambda: not ranks_of(run), "no orphan", 5)
    assert len(rows(run)) < ITERATIONS, "the ranks trained on without their launcher"
    rc, out, err = run_cli("resume", run, *FAST)
    assert rc == 0, out + err
    same(tmp_path / "whole", run, ITERATIONS)


@pytest.mark.parametrize(
    ("ranks", "number"),
    [
        (1, signal.SIGINT),
        (2, signal.SIGTERM),
        (1, signal.SIGUSR1),
        pytest.param(2, signal.SIGINT, marks=pytest.mark.exhaustive),
        pytest.param(1, signal.SIGTERM, marks=pytest.mark.exhaustive),
        pytest.param(2, signal.SIGUSR1, marks=pytest.mark.exhaustive),
    ],
)
def test_signal_stops_the_run_with_code_75(run_cli, begin, same, tmp_path: Path, number: int, ranks: int) -> None:
    run = tmp_path / "stopped"
    process = begin(*interrupted("gymnasium", run, ranks))
    wait_for(reached(run, 3), "3 iterations")
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 75, out + err
    assert err.count("lockstep: stopping after this iteration; a second ") == 1
    assert "with: lockstep resume" in out
    assert not ranks_of(run)
    if number == signal.SIGTERM:
        train_uninterrupted(run_cli, "gymnasium", tmp_path / "whole")
        assert run_cli("resume", run, "--ranks", 2, *FAST).rc == 0
        same(tmp_path / "whole", run, ITERATIONS)


def test_signal_to_every_process_stops_the_run_once(begin, tmp_path: Path) -> None:
    run = tmp_path / "stopped"
    process = begin(*interrupted("gymnasium", run, 2))
    wait_for(reached(run, 3), "3 iterations")
    ranks = ranks_of(run)
    for target in (*ranks, process.pid):
        os.kill(target, signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 75, out + err


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
@pytest.mark.parametrize("work", ["time.sleep(60)", "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**27)"])
def test_second_signal_kills_the_run(begin, tmp_path: Path, ranks: int, work: str) -> None:
    """Python handles signals during a sleep, but not during a call of compiled code."""
    run = tmp_path / "stopped"
    hook = f"import hashlib, time\n\ndef on_iteration(iteration):\n    print('works', flush=True)\n    {work}\n"
    (tmp_path / "slow.py").write_text(hook)
    # a single rank has a launcher only if it may be restarted
    process = begin(*words("gymnasium", run, ranks), "--run.hooks", "slow", "--restarts", 2 - ranks)
    assert process.stdout.readline() == "works\n"  # of rank 0, which alone runs hooks
    process.send_signal(signal.SIGINT)
    time.sleep(1.5)
    assert process.poll() is None
    for _ in range(5):  # signals within a second count as one, also if the machine has delayed the first one
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.communicate(timeout=4)
            break
    assert process.returncode not in (None, 0, 75)
    wait_for(lambda: not ranks_of(run), "no orphan", 5)


def test_signal_during_startup_stops_the_run(begin, environ: dict[str, str], tmp_path: Path) -> None:
    run = tmp_path / "stopped"
    (tmp_path / "sitecustomize.py").write_text("import sys, time\ntime.sleep(2 * ('rank' in sys.orig_argv))")
    environ["PYTHONPATH"] = os.pathsep.join([str(tmp_path), environ["PYTHONPATH"]])
    process = begin(*interrupted("gymnasium", run, 2), cold=True)
    wait_for(lambda: len(ranks_of(run)) == 2, "ranks, which sleep before they import PyTorch")
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 75, out + err
    assert "stopped after iteration 1 of" in out


def test_run_killed_before_the_first_checkpoint_starts_again(run_cli, begin, same, tmp_path: Path) -> None:
    train_uninterrupted(run_cli, "cartpole", tmp_path / "whole")
    run = tmp_path / "killed"
    process = begin(*interrupted("cartpole", run, 1))
    wait_for(reached(run, 1), "1 iteration")
    process.kill()
    process.wait()
    rc, out, err = run_cli("resume", run, "--iteration", 0, *FAST)
    assert rc == 0, out + err
    same(tmp_path / "whole", run, ITERATIONS)
    assert len(digests(run)) == ITERATIONS


@pytest.mark.command("g++")
@pytest.mark.parametrize(
    ("ranks", "plan"), [(1, "coupled"), pytest.param(2, "coupled", marks=pytest.mark.exhaustive), (2, "1:1")]
)
def test_signal_during_compilation_stops_the_run(
    run_cli, begin, same, monkeypatch: pytest.MonkeyPatch, environ, tmp_path: Path, ranks: int, plan: str
) -> None:
    cache, shared = tmp_path / "cache", os.environ["LOCKSTEP_CACHE"]
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    environ["LOCKSTEP_CACHE"], environ["TMPDIR"] = str(cache), str(temporary)
    shape = ("--rollout.steps", 128, "--ppo.minibatches", 2, "--total-steps", 8 * 128 * 3)  # as in test_compiled.py
    launcher = begin(
        *("train", "--env", "CartPole-v1", *shape, "--runtime.compile", "on", "--ranks", ranks, "--plan", plan),
        *("--plan.shards", 2, "--run.progress", "off", "--out", tmp_path, "--name", "run"),
    )
    wait_for(lambda: [*cache.glob("building-*/*.s"), *temporary.glob("*.s")], "the compiler")
    launcher.send_signal(signal.SIGTERM)
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 75, out + err
    assert "stopped before the first iteration of this start: nothing was trained" in err
    assert "Traceback" not in err
    left = {path.name.partition(".")[0] for path in cache.iterdir() if not path.name.startswith("lock-")}
    assert len(left) <= 1, "one of the libraries may be complete, but nothing else"
    assert not list(cache.glob("building-*"))
    assert not list(temporary.glob("cc*")), "temporary files of the compiler"
    assert not ranks_of(tmp_path / "run")
    start = json.loads((tmp_path / "run" / "starts.jsonl").read_text().splitlines()[-1])
    assert (start["event"], start["how"], start["why"]) == ("end", "stopped", "SIGTERM")
    if ranks == 1:
        rc, out, err = run_cli("resume", tmp_path / "run", env={"LOCKSTEP_CACHE": shared})
        assert rc == 0, out + err
        assert len(rows(tmp_path / "run")) == 3

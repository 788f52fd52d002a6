"""Tests of ranks that torchrun and mpirun start: how they stop, and that none remains."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live_runs import digests, reached, rows, wait_for

pytestmark = pytest.mark.slow

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m")
MPIRUN = ("mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", sys.executable, "-m")
LAUNCHERS = [
    pytest.param(TORCHRUN, id="torchrun"),
    pytest.param(MPIRUN, id="mpirun", marks=pytest.mark.command("mpirun")),
]
ONLY_TORCHRUN = [
    LAUNCHERS[0],
    pytest.param(MPIRUN, id="mpirun", marks=[pytest.mark.command("mpirun"), pytest.mark.exhaustive]),
]
ONLY_MPIRUN = [pytest.param(TORCHRUN, id="torchrun", marks=pytest.mark.exhaustive), LAUNCHERS[1]]
"""Both launchers, of which `make test` uses only one."""


def words(run: Path) -> list[str]:
    options = ["--out", str(run.parent), "--name", run.name, "--run.progress", "off", "--plan.shards", "2"]
    return [
        "lockstep",
        "train",
        "cartpole",
        *options,
        "--rollout.steps",
        "32",
        "--runtime.compile",
        "off",
        "--total-steps",
        "10_000_000",
        "--run.checkpoint-every",
        "1_000_000",
    ]


def live_ranks(run: Path) -> list[int]:
    """Return the process ids of the ranks that are alive."""
    ranks = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            alive = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            command = {*process.joinpath("cmdline").read_bytes().split(b"\0")}
        except OSError:
            continue
        is_rank = {b"train", str(run.parent).encode(), run.name.encode()} <= command
        if alive and is_rank and not command & {b"torch.distributed.run", b"mpirun"}:
            ranks.append(int(process.name))
    return ranks


@pytest.fixture
def start_launcher(tmp_path: Path, environ: dict[str, str]):
    """Return `start_launcher(launcher, run)`, which starts a launcher and waits until its ranks have done 3 iterations."""
    started: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(launcher: tuple[str, ...], run: Path) -> subprocess.Popen[bytes]:
        variables = environ | {"TMPDIR": str(tmp_path)}
        with (tmp_path / "log").open("wb") as log:  # a pipe would break when the launcher is killed
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            command = [*launcher, *words(run)]
            process = subprocess.Popen(command, cwd=tmp_path, env=variables, start_new_session=True, **streams)
        started.append((process, run))
        wait_for(reached(run, 3), "3 iterations")
        return process

    yield start
    for process, run in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for rank in live_ranks(run):
            os.kill(rank, signal.SIGKILL)


def stopped_cleanly(run: Path) -> bool:
    """Return True if the last recorded iteration has a checkpoint."""
    last = rows(run)[-1]["iteration"]
    return (run / "checkpoints" / f"{last:08d}").is_dir()


@pytest.mark.parametrize("launcher", ONLY_TORCHRUN)  # SIGUSR1, below, to mpirun
def test_signal_to_the_launcher_stops_the_ranks(start_launcher, tmp_path: Path, launcher: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    process = start_launcher(launcher, run)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    wait_for(lambda: not live_ranks(run), "no rank running", 20)
    assert stopped_cleanly(run)
    assert not [*tmp_path.glob("lockstep-rendezvous-*")]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_killing_the_launcher_stops_the_ranks(start_launcher, tmp_path: Path, launcher: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    process = start_launcher(launcher, run)
    process.kill()
    process.wait(30)
    wait_for(lambda: not live_ranks(run), "no rank running", 20)
    assert stopped_cleanly(run)
    assert not [*tmp_path.glob("lockstep-rendezvous-*")]


@pytest.mark.command("mpirun")
def test_mpirun_forwards_sigusr1_and_returns_code_75(start_launcher, tmp_path: Path) -> None:
    process = start_launcher(MPIRUN, tmp_path / "run")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30) == 75
    assert stopped_cleanly(tmp_path / "run")


@pytest.mark.parametrize("launcher", ONLY_MPIRUN)
def test_killing_one_rank_ends_all_ranks(start_launcher, tmp_path: Path, launcher: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    process = start_launcher(launcher, run)
    os.kill(live_ranks(run)[0], signal.SIGKILL)
    assert process.wait(60) != 0
    wait_for(lambda: not live_ranks(run), "no rank running", 20)


BAD_INPUTS = [
    (["--runtime.backend", "nccl"], "runtime.backend is 'nccl'"),
    (["--runtime.device", "cuda:99"], "runtime.device is 'cuda:99'"),
    (["--plan.shards", "3"], "plan.shards"),
    (["--runtime.rendezvous", "file:///nowhere/at/all"], "runtime.rendezvous"),
    (["--ranks", "2"], "--ranks is 2: the launcher"),
    (["--ppo.clipp", "1"], "did you mean --ppo.clip"),
]
"""Flags, and a part of the message: some are found before ranks meet, some afterwards."""


def launchers_and_bad_inputs() -> list[object]:
    """All pairs; two for each launcher, others than those of the other, are not left to `make test-exhaustive`."""
    pairs = []
    for place, launcher in enumerate(LAUNCHERS):
        for number, (bad, part) in enumerate(BAD_INPUTS):
            marks = [*launcher.marks, *([pytest.mark.exhaustive] if number % 3 != place else [])]
            pairs.append(pytest.param(*launcher.values, bad, part, id=f"{launcher.id}-{part}", marks=marks))
    return pairs


@pytest.mark.parametrize(("launcher", "bad", "part"), launchers_and_bad_inputs())
def test_invalid_input_is_reported_once_and_creates_no_run(
    run_cli, tmp_path: Path, launcher: tuple[str, ...], bad: list[str], part: str
) -> None:
    finished = run_cli("train", "cartpole", *bad, "--name", "run", prefix=launcher)
    messages = [line for line in finished.stderr.splitlines() if line.startswith("lockstep: ")]
    assert finished.rc != 0
    assert len(messages) == 1, finished.stderr
    assert part in messages[0]
    assert not live_ranks(tmp_path / "run")
    assert not (tmp_path / "runs").exists()


@pytest.mark.exhaustive  # tests/group/test_store.py shows the same in a second
def test_torchrun_restarts_the_ranks_to_the_same_digest(environ: dict[str, str], run_cli, tmp_path: Path) -> None:
    """Twice, because the store of torchrun then holds the addresses of two starts."""
    task = ["train", "--env", "CartPole-v1", "--plan.shards", "2", "--rollout.steps", "64", "--ppo.epochs", "2"]
    task += [
        "--total-steps",
        str(512 * 100),
        "--run.checkpoint-every",
        "5",
        "--run.progress",
        "off",
        "--runtime.compile",
        "off",
    ]
    run = tmp_path / "runs" / "killed"
    torchrun = [*TORCHRUN[:-1], "--max-restarts", "2", "--standalone", "-m"]
    command = [
        *torchrun,
        "lockstep",
        *task,
        "--out",
        str(run.parent),
        "--name",
        run.name,
        "--resume",
        "--runtime.timeout",
        "15",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=log, stderr=log, start_new_session=True)
    try:
        for rank, iterations in ((0, 10), (1, 30)):
            wait_for(reached(run, iterations), f"{iterations} iterations", 60)
            os.kill(sorted(live_ranks(run))[rank], signal.SIGKILL)
        assert process.wait(60) == 0, (tmp_path / "log").read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    assert run_cli(*task, "--name", "whole", "--ranks", 1).rc == 0
    assert digests(run) == digests(tmp_path / "runs" / "whole")

"""Ranks that somebody else started: how they stop, and that none is left."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live_runs import reached, rows, wait_for

pytestmark = pytest.mark.slow

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "-m")
MPIRUN = ("mpirun", "-n", "2", "--allow-run-as-root", "--oversubscribe", sys.executable, "-m")
LAUNCHERS = [
    pytest.param(TORCHRUN, id="torchrun"),
    pytest.param(MPIRUN, id="mpirun", marks=pytest.mark.command("mpirun")),
]


def words(run: Path) -> list[str]:
    where = ["--out", str(run.parent), "--name", run.name, "--run.progress", "off", "--plan.shards", "2"]
    return [
        "lockstep",
        "train",
        "cartpole",
        *where,
        "--rollout.steps",
        "32",
        "--runtime.compile",
        "off",
        "--total-steps",
        "10_000_000",
        "--run.checkpoint-every",
        "1_000_000",
    ]


def launched(run: Path) -> list[int]:
    """Process ids of the ranks that are alive."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            alive = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
            command = {*process.joinpath("cmdline").read_bytes().split(b"\0")}
        except OSError:
            continue
        own = {b"train", str(run.parent).encode(), run.name.encode()} <= command
        if alive and own and not command & {b"torch.distributed.run", b"mpirun"}:
            found.append(int(process.name))
    return found


@pytest.fixture
def begun(tmp_path: Path, environ: dict[str, str]):
    """`begun(launcher, run)` is the launcher's process, once its ranks have done 3 iterations."""
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
        for left in launched(run):
            os.kill(left, signal.SIGKILL)


def stopped_cleanly(run: Path) -> bool:
    """Whether the last iteration that was recorded has a checkpoint."""
    last = rows(run)[-1]["iteration"]
    return (run / "checkpoints" / f"{last:08d}").is_dir()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_what_asks_the_launcher_to_stop_reaches_the_ranks(begun, tmp_path: Path, launcher: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    process = begun(launcher, run)
    process.send_signal(signal.SIGTERM)
    process.wait(30)
    wait_for(lambda: not launched(run), "no rank left", 20)
    assert stopped_cleanly(run)
    assert not [*tmp_path.glob("lockstep-meeting-*")]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ranks_stop_when_their_launcher_is_killed(begun, tmp_path: Path, launcher: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    process = begun(launcher, run)
    process.kill()
    process.wait(30)
    wait_for(lambda: not launched(run), "no rank left", 20)
    assert stopped_cleanly(run)
    assert not [*tmp_path.glob("lockstep-meeting-*")]


@pytest.mark.command("mpirun")
def test_mpirun_passes_sigusr1_on_and_gives_code_75(begun, tmp_path: Path) -> None:
    process = begun(MPIRUN, tmp_path / "run")
    process.send_signal(signal.SIGUSR1)
    assert process.wait(30) == 75
    assert stopped_cleanly(tmp_path / "run")


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_leaves_no_other(begun, tmp_path: Path, launcher: tuple[str, ...]) -> None:
    run = tmp_path / "run"
    process = begun(launcher, run)
    os.kill(launched(run)[0], signal.SIGKILL)
    assert process.wait(60) != 0
    wait_for(lambda: not launched(run), "no rank left", 20)


@pytest.mark.parametrize(
    ("bad", "part"),
    [
        (["--runtime.backend", "nccl"], "runtime.backend is 'nccl'"),
        (["--runtime.device", "cuda:99"], "runtime.device is 'cuda:99'"),
        (["--runtime.rendezvous", "file:///nowhere/at/all"], "runtime.rendezvous"),
        (["--plan.shards", "3"], "plan.shards"),
        (["--ranks", "2"], "--ranks is 2: the launcher"),
        (["--ppo.clipp", "1"], "did you mean --ppo.clip"),
    ],
)
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_bad_input_is_told_once_and_leaves_nothing(
    run_cli, tmp_path: Path, launcher: tuple[str, ...], bad: list[str], part: str
) -> None:
    finished = run_cli("train", "cartpole", *bad, "--name", "run", prefix=launcher)
    told = [line for line in finished.stderr.splitlines() if line.startswith("lockstep: ")]
    assert finished.rc != 0
    assert len(told) == 1, finished.stderr
    assert part in told[0]
    assert not launched(tmp_path / "run")
    assert not (tmp_path / "runs").exists()

"""Bit-identical results with every launcher that is installed, with Lightning Fabric and in bfloat16."""

import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.agreement.conftest import AlternatingServers
from tests.agreement.test_ranks import ITERATIONS, TORCHRUN, train, words_of
from tests.conftest import Finished
from tests.live_runs import digests

pytestmark = pytest.mark.slow

FABRIC = ("--runtime.kind", "fabric")
FABRIC_RUN = Path(sys.executable).with_name("fabric")
Digests = Callable[..., list[str]]


def mpirun(ranks: int) -> tuple[str, ...]:
    return ("mpirun", "-n", str(ranks), "--allow-run-as-root", "--oversubscribe", sys.executable, "-m")


def trained(run: Callable[..., Finished], folder: Path, name: str, *words: object, **options: object) -> list[str]:
    """Train CartPole in `folder`; return the digest of every iteration."""
    train(run, "cartpole", name, *words, **options)
    found = digests(folder / "runs" / name)
    assert len(found) == ITERATIONS
    return found


@pytest.fixture(scope="module", name="alone")
def fixture_alone(run_in, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Digests of a single rank with plain PyTorch, the reference of all comparisons."""
    folder = tmp_path_factory.mktemp("alone")
    run_in(folder, *words_of("cartpole", "alone", "--ranks", 1))
    return digests(folder / "runs" / "alone")


@pytest.fixture
def digests_of(run_cli, tmp_path: Path) -> Digests:
    """Return `digests_of(name, *words, prefix=…)`, which trains the same experiment and returns its digests."""
    return partial(trained, run_cli, tmp_path)


@pytest.mark.extra("lightning_fabric")
def test_fabric_gives_the_bits_of_torch(alone: list[str], digests_of: Digests) -> None:
    assert digests_of("fabric-shared", *FABRIC, "--ranks", 2, "--runtime.backend", "shared") == alone


@pytest.mark.exhaustive  # `fabric run`, below, starts ranks with torchrun
@pytest.mark.extra("lightning_fabric")
def test_fabric_under_torchrun_gives_the_bits_of_torch(alone: list[str], digests_of: Digests) -> None:
    assert digests_of("fabric-torchrun", *FABRIC, prefix=(*TORCHRUN, "2", "-m")) == alone


@pytest.mark.exhaustive
@pytest.mark.extra("lightning_fabric")
@pytest.mark.parametrize("words", [("--ranks", 1), ("--ranks", 2), ("--plan", "1:2")])
def test_fabric_gives_the_bits_of_torch_under_plans(
    alone: list[str], digests_of: Digests, words: tuple[object, ...]
) -> None:
    assert digests_of("fabric", *FABRIC, *words) == alone


@pytest.mark.extra("lightning_fabric")
@pytest.mark.parametrize(
    ("kind", "ranks"),
    [
        ("fabric", 2),
        pytest.param("torch", 2, marks=pytest.mark.exhaustive),
        pytest.param("fabric", 1, marks=pytest.mark.exhaustive),
    ],
)
def test_fabric_run_gives_the_same_bits(
    alone: list[str], digests_of: Digests, tmp_path: Path, kind: str, ranks: int
) -> None:
    # it takes a script, such as an installation puts in bin/, where all others take a module
    (tmp_path / "lockstep").write_text("from lockstep.__main__ import command\ncommand()\n")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    run = (str(FABRIC_RUN), "run", "--accelerator", "cpu", "--devices", str(ranks), "--main-port", port)
    assert digests_of("run", "--runtime.kind", kind, prefix=run) == alone


@pytest.mark.command("mpirun")
@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        pytest.param(1, (), marks=pytest.mark.exhaustive),
        (2, ()),
        pytest.param(2, ("--runtime.backend", "gloo"), marks=pytest.mark.exhaustive),
        pytest.param(3, ("--plan", "one-player"), marks=pytest.mark.exhaustive),
    ],
)
def test_mpirun_gives_the_same_bits(
    alone: list[str], digests_of: Digests, ranks: int, words: tuple[object, ...]
) -> None:
    assert digests_of("mpirun", *words, prefix=mpirun(ranks)) == alone


@pytest.mark.exhaustive
@pytest.mark.command("mpirun")
@pytest.mark.extra("lightning_fabric")
def test_fabric_under_mpirun_gives_the_same_bits(alone: list[str], digests_of: Digests) -> None:
    assert digests_of("mpirun-fabric", *FABRIC, prefix=mpirun(2)) == alone


@pytest.fixture
def digests_with(warm: AlternatingServers, environ: dict[str, str], tmp_path: Path) -> Digests:
    """Return `digests_with(name, variables, *words)`, which trains on two ranks with the environment variables that a launcher sets.

    `variables` may contain `{rank}` and `{size}`. The ranks are forked. In the tests above, real launchers start them.
    """

    def run(name: str, variables: str, *words: object) -> list[str]:
        command = (variables, 2, *words_of("cartpole", name, *words))
        launcher = warm.start(*command, cwd=tmp_path, environ=environ, module="tests.agreement.launcher")
        try:
            finished = launcher.wait(100)
        finally:
            launcher.kill()
        assert finished.rc == 0, finished
        found = digests(tmp_path / "runs" / name)
        assert len(found) == ITERATIONS
        return found

    return run


SRUN = (
    "SLURM_JOB_ID={job} SLURM_STEP_ID=0 SLURM_PROCID={{rank}} SLURM_STEP_NUM_TASKS={{size}} SLURM_NTASKS={{size}} "
    "SLURM_LOCALID={local} SLURM_NODEID={node} SLURM_STEP_TASKS_PER_NODE={tasks} SLURM_STEP_NODELIST=localhost"
).format
HYDRA = "PMI_RANK={rank} PMI_SIZE={size} MPI_LOCALRANKID={rank} MPI_LOCALNRANKS={size}"


def test_variables_of_srun_and_mpiexec_give_the_same_bits(alone: list[str], digests_with: Digests) -> None:
    job = os.getpid()
    one_host = SRUN(job=job, local="{rank}", node=0, tasks="{size}")
    assert digests_with("srun", one_host) == alone
    two_hosts = SRUN(job=job, local=0, node="{rank}", tasks="1(x2)")
    assert digests_with("srun2", two_hosts, "--runtime.backend", "gloo") == alone
    assert digests_with("mpiexec", HYDRA) == alone


def test_ranks_started_by_hand_can_reuse_a_rendezvous_file(
    alone: list[str], digests_with: Digests, tmp_path: Path
) -> None:
    by_hand, meet = "RANK={rank} WORLD_SIZE={size}", tmp_path / "meet"
    for name in ("first", "second"):
        (tmp_path / "meet.rank-1").write_text("what a killed run has left")
        assert digests_with(name, by_hand, "--runtime.rendezvous", f"file://{meet}") == alone
        assert not [*tmp_path.glob("meet*")]


@pytest.mark.extra("lightning_fabric")
def test_bfloat16_gives_the_same_bits_on_any_number_of_ranks(alone: list[str], digests_of: Digests) -> None:
    bf16 = ("--runtime.precision", "bf16")
    found = digests_of("alone", *bf16, "--ranks", 1)
    assert not set(found) & set(alone)
    assert digests_of("ranks", *bf16, "--ranks", 2) == found
    assert digests_of("fabric", *bf16, *FABRIC, "--plan", "1:1") == found


@pytest.mark.exhaustive
def test_bfloat16_learns_cartpole(run_cli, tmp_path: Path) -> None:
    words = ("--runtime.precision", "bf16", "--total-steps", 40_000, "--run.progress", "off", "--name", "long")
    rc, out, err = run_cli("train", "cartpole", *words, "--run.stop-at-return", 200)
    assert rc == 0, out + err
    rows = [json.loads(line) for line in (tmp_path / "runs" / "long" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["return_mean_20"] >= 200 > 50 > rows[0]["return_mean"]

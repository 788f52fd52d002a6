"""The promise for every plan: one digest per experiment, whoever plays and whoever trains, over memory and over the network."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.agreement.member import COLUMNS, ITERATIONS
from tests.processes import digests

from lockstep.group.memory import create_memory

pytestmark = pytest.mark.slow

MEMBER = Path(__file__).with_name("member.py")
PLANS = {
    "solo": ("coupled", 1),
    "coupled x 2": ("coupled", 2),
    "coupled x 3": ("coupled", 3),  # four shards: 2, 1, 1
    "coupled x 4": ("coupled", 4),
    "1:1": ("1:1", 2),
    "1:2": ("1:2", 3),
    "2:1": ("2:1", 3),
    "2:2": ("2:2", 4),
    "3:1": ("3:1", 4),
    "one-player": ("one-player", 3),
    "one-trainer": ("one-trainer", 3),
}
Digests = dict[str, list[str]]


def trained(folder: Path, plan: str, backend: str, kind: str, environ: dict[str, str]) -> Digests:
    """Every column's digests, one per iteration."""
    name, size = PLANS[plan]
    memory = create_memory(size) if backend == "shared" and size > 1 else None
    meeting = f"file://{folder}/meeting" if memory is None else str(memory)
    folder.mkdir()
    ranks = [
        subprocess.Popen(
            [sys.executable, str(MEMBER), str(folder), name, kind, backend, str(rank), str(size), meeting],
            env=environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
            pass_fds=() if memory is None else (memory,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    if memory is not None:
        os.close(memory)
    try:
        said = [rank.communicate(timeout=100)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * size, "\n".join(said)
    return {column: digests(folder / column) for column in COLUMNS}


@pytest.fixture(scope="module", name="alone")
def fixture_alone(tmp_path_factory: pytest.TempPathFactory) -> Digests:
    """What one rank gets, to which all others are compared."""
    environ = os.environ | {"PYTHONPATH": str(MEMBER.parents[2] / "src")}
    folder = tmp_path_factory.mktemp("alone") / "runs"
    found = trained(folder, "solo", "shared", "torch", environ)
    for column in COLUMNS:
        if column.startswith("continuous"):
            rows = (folder / column / "metrics.jsonl").read_text().splitlines()
            assert {json.loads(row)["kl_stopped"] for row in rows} == {0, 1}, (
                "updates that stop early, and some that don't"
            )
    return found


def check(found: Digests, alone: Digests) -> None:
    assert {len(digests) for digests in found.values()} == {ITERATIONS}
    assert [column for column in COLUMNS if found[column] != alone[column]] == []


@pytest.mark.parametrize("plan", list(PLANS)[1:])
def test_over_shared_memory(plan: str, tmp_path: Path, alone: Digests, environ: dict[str, str]) -> None:
    check(trained(tmp_path / "runs", plan, "shared", "torch", environ), alone)


@pytest.mark.parametrize("plan", ["coupled x 2", "2:1", "2:2"])
def test_over_the_network(plan: str, tmp_path: Path, alone: Digests, environ: dict[str, str]) -> None:
    check(trained(tmp_path / "runs", plan, "gloo", "torch", environ), alone)


@pytest.mark.extra("lightning_fabric")
@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan not in ("coupled x 3", "one-player", "one-trainer")])
def test_under_fabric(plan: str, tmp_path: Path, alone: Digests, environ: dict[str, str]) -> None:
    check(trained(tmp_path / "runs", plan, "auto", "fabric", environ), alone)


def test_columns_are_different_experiments(alone: Digests) -> None:
    assert len({digests[-1] for digests in alone.values()}) == len(COLUMNS)

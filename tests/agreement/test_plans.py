"""The promise for every plan: one digest per experiment, whoever plays and whoever trains, over memory and over the network."""

import json
from pathlib import Path

import pytest
from tests.agreement.matrix import PLANS, Digests, Trained
from tests.agreement.member import ITERATIONS, MATRICES

COLUMNS = MATRICES["plans"]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="alone")
def fixture_alone(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Digests:
    """What one rank gets, to which all others are compared."""
    folder = tmp_path_factory.mktemp("alone") / "runs"
    found = trained(folder, "plans", "solo", "shared", "torch")
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
def test_over_shared_memory(plan: str, trained: Trained, tmp_path: Path, alone: Digests) -> None:
    check(trained(tmp_path / "runs", "plans", plan, "shared", "torch"), alone)


@pytest.mark.parametrize("plan", ["coupled x 2", "2:1", "2:2"])
def test_over_the_network(plan: str, trained: Trained, tmp_path: Path, alone: Digests) -> None:
    check(trained(tmp_path / "runs", "plans", plan, "gloo", "torch"), alone)


@pytest.mark.extra("lightning_fabric")
@pytest.mark.parametrize("plan", [plan for plan in PLANS if plan not in ("coupled x 3", "one-player", "one-trainer")])
def test_under_fabric(plan: str, trained: Trained, tmp_path: Path, alone: Digests) -> None:
    check(trained(tmp_path / "runs", "plans", plan, "auto", "fabric"), alone)


def test_columns_are_different_experiments(alone: Digests) -> None:
    assert len({digests[-1] for digests in alone.values()}) == len(COLUMNS)

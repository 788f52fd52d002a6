"""Bit-identical results for every plan: shared memory, network and Lightning Fabric give the digests of one rank."""

import json
from pathlib import Path

import pytest
from tests.agreement.matrix import PLANS, Digests, Trained, check_columns, every
from tests.agreement.member import MATRICES

COLUMNS = MATRICES["plans"]
SHARED = list(PLANS)[1:]
NETWORK = ["coupled x 2", "2:1", "2:2"]
FABRIC = [plan for plan in PLANS if plan not in ("coupled x 3", "one-player", "one-trainer")]
FEW = ["solo", "coupled x 2", "1:1", "1:2", "2:2"]
"""Plans that `make test` trains under Fabric."""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", name="alone")
def fixture_alone(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Digests:
    """Digests of a single rank, the reference of all comparisons."""
    folder = tmp_path_factory.mktemp("alone") / "runs"
    found = trained(folder, "plans", "solo", "shared", "torch")
    for column in COLUMNS:
        if column.startswith("spoiled"):
            rows = [json.loads(row) for row in (folder / column / "metrics.jsonl").read_text().splitlines()]
            assert all(row["update_steps"] for row in rows)
            assert any(row["skipped_steps"] for row in rows), "gradient steps are left out"
            continue
        if column.startswith("continuous"):
            rows = (folder / column / "metrics.jsonl").read_text().splitlines()
            assert {json.loads(row)["kl_stopped"] for row in rows} == {0, 1}, (
                "updates that stop early, and some that don't"
            )
    return found


@pytest.mark.parametrize("plan", SHARED)
def test_plans_over_shared_memory_give_the_digests_of_one_rank(
    plan: str, trained: Trained, tmp_path: Path, alone: Digests
) -> None:
    """Each plan trains a third of the columns. Each column has a plan in which all ranks train, and one with separate players."""
    columns = every(COLUMNS, 3, SHARED.index(plan))
    check_columns(trained(tmp_path / "runs", "plans", plan, "shared", "torch", columns), alone)


@pytest.mark.parametrize("plan", NETWORK)
def test_plans_over_the_network_give_the_digests_of_one_rank(
    plan: str, trained: Trained, tmp_path: Path, alone: Digests
) -> None:
    """Each plan trains a third of the columns."""
    columns = every(COLUMNS, 3, NETWORK.index(plan))
    check_columns(trained(tmp_path / "runs", "plans", plan, "gloo", "torch", columns), alone)


@pytest.mark.extra("lightning_fabric")
@pytest.mark.parametrize(
    "plan", [plan if plan in FEW else pytest.param(plan, marks=pytest.mark.exhaustive) for plan in FABRIC]
)
def test_plans_under_fabric_give_the_digests_of_one_rank(
    plan: str, trained: Trained, tmp_path: Path, alone: Digests
) -> None:
    """With a quarter of the columns for each plan; the plans of FEW have all columns together."""
    columns = every(COLUMNS, 4, FABRIC.index(plan))
    check_columns(trained(tmp_path / "runs", "plans", plan, "auto", "fabric", columns), alone)


@pytest.mark.exhaustive
@pytest.mark.parametrize("plan", SHARED)
def test_all_columns_over_shared_memory_give_the_digests_of_one_rank(
    plan: str, trained: Trained, tmp_path: Path, alone: Digests
) -> None:
    check_columns(trained(tmp_path / "runs", "plans", plan, "shared", "torch"), alone)


@pytest.mark.exhaustive
@pytest.mark.parametrize("plan", NETWORK)
def test_all_columns_over_the_network_give_the_digests_of_one_rank(
    plan: str, trained: Trained, tmp_path: Path, alone: Digests
) -> None:
    check_columns(trained(tmp_path / "runs", "plans", plan, "gloo", "torch"), alone)


@pytest.mark.exhaustive
@pytest.mark.extra("lightning_fabric")
@pytest.mark.parametrize("plan", FABRIC)
def test_all_columns_under_fabric_give_the_digests_of_one_rank(
    plan: str, trained: Trained, tmp_path: Path, alone: Digests
) -> None:
    check_columns(trained(tmp_path / "runs", "plans", plan, "auto", "fabric"), alone)


def test_columns_have_different_digests(alone: Digests) -> None:
    assert len({digests[-1] for digests in alone.values()}) == len(COLUMNS)

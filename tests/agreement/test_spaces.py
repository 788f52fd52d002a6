"""Bit-identical results for every kind of policy: memory, images, structures and masks, with several plans."""

from pathlib import Path

import pytest
from tests.agreement.matrix import Digests, Trained, check_columns, every
from tests.agreement.member import MATRICES

pytestmark = pytest.mark.slow

COLUMNS = MATRICES["spaces"]
SHARED = ["coupled x 2", "coupled x 3", "1:2", "2:1"]


@pytest.fixture(scope="module", name="alone")
def fixture_alone(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Digests:
    """Digests of a single rank, the reference of all comparisons."""
    return trained(tmp_path_factory.mktemp("alone") / "runs", "spaces", "solo", "shared", "torch")


@pytest.mark.parametrize("plan", SHARED)
def test_plans_over_shared_memory_give_the_digests_of_one_rank(
    plan: str, trained: Trained, tmp_path: Path, alone: Digests
) -> None:
    """Each plan trains half of the columns. Each column has a plan in which all ranks train, and one with separate players."""
    columns = every(COLUMNS, 2, SHARED.index(plan))
    check_columns(trained(tmp_path / "runs", "spaces", plan, "shared", "torch", columns), alone)


def test_plan_over_the_network_gives_the_digests_of_one_rank(trained: Trained, tmp_path: Path, alone: Digests) -> None:
    """With a third of the columns: every column is trained over shared memory, and every transport by test_plans.py."""
    columns = every(COLUMNS, 3, 0)
    check_columns(trained(tmp_path / "runs", "spaces", "2:1", "gloo", "torch", columns), alone)


@pytest.mark.exhaustive
def test_all_columns_over_the_network(trained: Trained, tmp_path: Path, alone: Digests) -> None:
    check_columns(trained(tmp_path / "runs", "spaces", "2:1", "gloo", "torch"), alone)


@pytest.mark.exhaustive
@pytest.mark.parametrize("plan", SHARED)
def test_all_columns_over_shared_memory_give_the_digests_of_one_rank(
    plan: str, trained: Trained, tmp_path: Path, alone: Digests
) -> None:
    check_columns(trained(tmp_path / "runs", "spaces", plan, "shared", "torch"), alone)


def test_columns_have_different_digests(alone: Digests) -> None:
    assert len({digests[-1] for digests in alone.values()}) == len(COLUMNS)

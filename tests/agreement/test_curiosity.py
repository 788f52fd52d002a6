"""The promise for every method of curiosity, with and without memory, whoever plays and whoever trains."""

from pathlib import Path

import pytest
from tests.agreement.matrix import Digests, Trained
from tests.agreement.member import ITERATIONS, MATRICES

pytestmark = pytest.mark.slow

COLUMNS = MATRICES["curiosity"]


@pytest.fixture(scope="module", name="alone")
def fixture_alone(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Digests:
    """What one rank gets, to which all others are compared."""
    return trained(tmp_path_factory.mktemp("alone") / "runs", "curiosity", "solo", "shared", "torch")


@pytest.mark.parametrize(
    ("plan", "backend"),
    [("coupled x 2", "shared"), ("coupled x 3", "shared"), ("1:2", "shared"), ("2:1", "shared"), ("2:1", "gloo")],
)
def test_one_digest(plan: str, backend: str, trained: Trained, tmp_path: Path, alone: Digests) -> None:
    found = trained(tmp_path / "runs", "curiosity", plan, backend, "torch")
    assert {len(digests) for digests in found.values()} == {ITERATIONS}
    assert [column for column in COLUMNS if found[column] != alone[column]] == []


def test_columns_are_different_experiments(alone: Digests) -> None:
    assert len({digests[-1] for digests in alone.values()}) == len(COLUMNS)

"""Training with DistributedDataParallel on three processes: same bits on every rank, equal to the ordered sum up to rounding."""

from pathlib import Path

import numpy as np
import pytest
from tests.conftest import plain_environ
from tests.replica import CASES, EQUAL, SHARDS, train
from tests.warm import Warm

from lockstep.group.solo import Solo

pytestmark = pytest.mark.slow

RANKS = len(EQUAL)


@pytest.fixture(scope="module", name="replicas")
def fixture_replicas(warm: Warm, root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run three trainers and return the folder with their results."""
    folder = tmp_path_factory.mktemp("replicas")
    environ = plain_environ() | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    program = warm.start(RANKS, folder, cwd=root, environ=environ, module="tests.replica")
    try:
        finished = program.wait(100)
    finally:
        program.kill()
    assert finished.rc == 0, finished.stderr
    return folder


@pytest.mark.parametrize("case", CASES)
def test_ddp_gradients_equal_the_ordered_sum_over_all_trainers(replicas: Path, case: str) -> None:
    found = [np.load(replicas / f"{rank}.{case}.npy") for rank in range(RANKS)]
    assert all(np.array_equal(found[0], other) for other in found[1:])
    expected = train(case, Solo(), tuple(range(SHARDS)))
    assert np.allclose(found[0], expected, rtol=1e-9, atol=1e-10)

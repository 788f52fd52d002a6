"""Test of process groups that are destroyed while a module still refers to them."""

from pathlib import Path

import pytest
from tests.conftest import plain_environ
from tests.warm import Finished, Warm

pytestmark = pytest.mark.slow

ROUNDS = 100


def test_deleting_a_replicated_module_does_not_deadlock(warm: Warm, root: Path, tmp_path: Path) -> None:
    """PyTorch deadlocks in a few of a hundred rounds if the module holds the last reference to its group."""
    environ = plain_environ() | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [
        warm.start(
            rank, f"file://{tmp_path}/rendezvous", ROUNDS, cwd=root, environ=environ, module="tests.runtime.replicate"
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(100) for rank in ranks] == [Finished(0, "", "")] * 2
    finally:
        for rank in ranks:
            rank.kill()

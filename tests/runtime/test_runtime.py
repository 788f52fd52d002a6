"""Tests of `join` with real processes: both kinds of runtime, every backend that needs no GPU."""

import os
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.conftest import plain_environ
from tests.forked import FIRST
from tests.runtime.member import MEMBERS, batch_of, gradients, policy_of
from tests.warm import Finished, Program, SpawnedProgram, Warm

from lockstep.group.memory import create_memory
from lockstep.runtime.checks import shares_memory
from lockstep.runtime.settings import RuntimeConfig

pytestmark = pytest.mark.slow

MODULE = "tests.runtime.member"
SIZE = 3
COLD = ("fabric", "auto")
"""Kind and backend of a case whose rank 0 is started as users start it, with warnings as errors while modules are imported. All other ranks are
forked."""
FABRIC = pytest.mark.extra("lightning_fabric")
CASES = [
    pytest.param(("torch", "auto", "fp32", "SharedMemoryGroup"), marks=pytest.mark.exhaustive),
    ("torch", "gloo", "bf16", "NetworkGroup"),
    pytest.param(("fabric", "auto", "fp32", "FabricGroup"), marks=FABRIC),
    pytest.param(("fabric", "shared", "bf16", "SharedMemoryGroup"), marks=FABRIC),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: " ".join(case[:3]))
def joined(request: pytest.FixtureRequest, root: Path, warm: Warm, tmp_path_factory: pytest.TempPathFactory):
    """Start SIZE ranks; return the config, the name of the expected group, and the results of each rank."""
    kind, backend, precision, group = request.param
    config = RuntimeConfig(kind=kind, backend=backend, precision=precision)
    folder = tmp_path_factory.mktemp("ranks")
    memory = create_memory(SIZE) if shares_memory(config) else None
    files, environ = () if memory is None else (memory,), plain_environ()
    ranks: list[Program] = []
    for rank in range(SIZE):
        words = [folder, kind, backend, precision, rank, SIZE]
        if (kind, backend) == COLD and rank == 0:
            path = os.pathsep.join([str(root), environ["PYTHONPATH"]])
            command = [sys.executable, "-W", "error", "-m", MODULE, *map(str, words), str(memory or "-")]
            ranks.append(SpawnedProgram(command, root, environ | {"PYTHONPATH": path}, files))
        else:
            words.append("-" if memory is None else FIRST)
            ranks.append(warm.start(*words, cwd=root, environ=environ, module=MODULE, files=files))
    if memory is not None:
        os.close(memory)
    try:
        finished = [rank.wait(120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert finished == [Finished(0, "", "")] * SIZE
    assert not [*folder.glob("rendezvous*")], "the files of the rendezvous are removed"
    return config, group, [np.load(folder / f"{rank}.npz") for rank in range(SIZE)]


def test_group_is_of_the_requested_kind(joined) -> None:
    _, group, results = joined
    assert [str(result["group"]) for result in results] == [group] * SIZE
    assert all(bool(result["uses fabric"]) is (group == "FabricGroup") for result in results)


def test_rows_are_in_rank_order(joined) -> None:
    _, _, results = joined
    rows = np.arange(6.0).reshape(2, 3)
    for result in results:
        np.testing.assert_array_equal(result["all"], np.concatenate([rows, rows + 10, rows + 20]))
        np.testing.assert_array_equal(result["sum"], [69, 75, 81])
        np.testing.assert_array_equal(result["flags"], [[True], [False], [True]])
        assert (result["timings"] > 0).all(), "both waiting and moving are measured"
    for rank in MEMBERS:
        np.testing.assert_array_equal(results[rank]["subgroup"], np.concatenate([rows, rows[:1] + 20]))
        np.testing.assert_array_equal(results[rank]["subgroup sum"], [23, 26, 29])


def test_replicated_gradients_are_averaged_over_members(joined) -> None:
    _, _, results = joined
    own_gradients = [result["own gradients"] for result in results]
    assert [bool(result["replicated"]) for result in results] == [rank in MEMBERS for rank in range(SIZE)]
    mean = (own_gradients[0] + own_gradients[2]) / 2
    assert not np.allclose(own_gradients[0], mean)
    for rank in MEMBERS:
        np.testing.assert_allclose(results[rank]["replicated gradients"], mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(results[1]["replicated gradients"], own_gradients[1])
    assert all(bool(result["single member unchanged"]) for result in results), "a single member needs no replica"


def test_networks_compute_in_the_configured_precision(joined) -> None:
    config, _, results = joined
    autocast = partial(torch.autocast, "cpu", torch.bfloat16) if config.precision == "bf16" else nullcontext
    for rank, result in enumerate(results):
        policy = policy_of(autocast)
        np.testing.assert_array_equal(result["output"], policy(batch_of(rank))[0].detach().numpy())
        np.testing.assert_array_equal(result["own gradients"], gradients(policy, policy, rank))
    exact = policy_of(nullcontext)(batch_of(0))[0].detach().numpy()
    assert np.array_equal(results[0]["output"], exact) is (config.precision == "fp32")


def test_joining_does_not_change_threads_or_warnings(joined) -> None:
    _, _, results = joined
    assert all(bool(result["process unchanged"]) for result in results)


def test_cores_are_split_over_ranks(joined) -> None:
    _, _, results = joined
    cores = [int(result["cores"]) for result in results]
    assert sum(cores) == max(SIZE, len(os.sched_getaffinity(0)))

"""What a rank gets when it joins: real processes, both kinds of runtime, every backend that needs no GPU."""

import os
import subprocess
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.runtime.member import MEMBERS, batch_of, gradients, policy_of

from lockstep.group.memory import create_memory
from lockstep.runtime.checks import shares_memory
from lockstep.runtime.settings import RuntimeConfig

pytestmark = pytest.mark.slow

SIZE = 3
FABRIC = pytest.mark.extra("lightning_fabric")
CASES = [
    ("torch", "auto", "fp32", "SharedMemoryGroup"),
    ("torch", "gloo", "bf16", "NetworkGroup"),
    pytest.param(("fabric", "auto", "fp32", "FabricGroup"), marks=FABRIC),
    pytest.param(("fabric", "shared", "bf16", "SharedMemoryGroup"), marks=FABRIC),
]


@pytest.fixture(scope="module", params=CASES, ids=lambda case: " ".join(case[:3]))
def joined(request: pytest.FixtureRequest, root: Path, tmp_path_factory: pytest.TempPathFactory):
    """(config, expected group, what each rank found)."""
    kind, backend, precision, group = request.param
    config = RuntimeConfig(kind=kind, backend=backend, precision=precision)
    folder = tmp_path_factory.mktemp("ranks")
    memory = create_memory(SIZE) if shares_memory(config) else None
    path = os.pathsep.join([str(root), str(root / "src")])
    command = [sys.executable, "-W", "error", "-m", "tests.runtime.member", str(folder), kind, backend, precision]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(SIZE), "-" if memory is None else str(memory)],
            cwd=root,
            env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            pass_fds=() if memory is None else (memory,),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(SIZE)
    ]
    if memory is not None:
        os.close(memory)
    said = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * SIZE, "\n".join(said)
    assert said == [""] * SIZE
    assert not [*folder.glob("meeting*")], "nothing is left of the meeting"
    return config, group, [np.load(folder / f"{rank}.npz") for rank in range(SIZE)]


def test_the_group_is_the_one_asked_for(joined) -> None:
    _, group, found = joined
    assert [str(own["group"]) for own in found] == [group] * SIZE
    assert all(bool(own["by fabric"]) is (group == "FabricGroup") for own in found)


def test_rows_come_in_the_order_of_ranks(joined) -> None:
    _, _, found = joined
    rows = np.arange(6.0).reshape(2, 3)
    for own in found:
        np.testing.assert_array_equal(own["all"], np.concatenate([rows, rows + 10, rows + 20]))
        np.testing.assert_array_equal(own["sum"], [69, 75, 81])
        np.testing.assert_array_equal(own["flags"], [[True], [False], [True]])
        assert (own["timings"] > 0).all(), "waiting is told apart from moving"
    for rank in MEMBERS:
        np.testing.assert_array_equal(found[rank]["part"], np.concatenate([rows, rows[:1] + 20]))
        np.testing.assert_array_equal(found[rank]["part sum"], [23, 26, 29])


def test_replicated_gradients_are_averaged_over_the_members(joined) -> None:
    _, _, found = joined
    alone = [own["alone"] for own in found]
    assert [bool(own["replicated"]) for own in found] == [rank in MEMBERS for rank in range(SIZE)]
    mean = (alone[0] + alone[2]) / 2
    assert not np.allclose(alone[0], mean)
    for rank in MEMBERS:
        np.testing.assert_allclose(found[rank]["together"], mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[1]["together"], alone[1])
    assert all(bool(own["only"]) for own in found), "one member needs no replica"


def test_networks_compute_in_the_precision_asked_for(joined) -> None:
    config, _, found = joined
    autocast = partial(torch.autocast, "cpu", torch.bfloat16) if config.precision == "bf16" else nullcontext
    for rank, own in enumerate(found):
        policy = policy_of(autocast)
        np.testing.assert_array_equal(own["output"], policy(batch_of(rank))[0].detach().numpy())
        np.testing.assert_array_equal(own["alone"], gradients(policy, policy, rank))
    exact = policy_of(nullcontext)(batch_of(0))[0].detach().numpy()
    assert np.array_equal(found[0]["output"], exact) is (config.precision == "fp32")


def test_the_process_is_left_as_it_was(joined) -> None:
    _, _, found = joined
    assert all(bool(own["left alone"]) for own in found)


def test_cores_are_dealt_out(joined) -> None:
    _, _, found = joined
    cores = [int(own["cores"]) for own in found]
    assert sum(cores) == max(SIZE, len(os.sched_getaffinity(0)))

"""Tests of cores in NumPy, compared with PyTorch."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.models.cores import Core
from lockstep.models.flat import FlatParameters
from lockstep.models.numpy_cores import stepper
from lockstep.models.registry import core_factory
from lockstep.randomness import stream

INPUT, SIZE = 5, 7
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
BUILT_IN = ("lstm", "gru", "mingru")


class CumulativeSum(Core):
    """User-defined core: the sum of all features so far."""

    output_size = state_size = INPUT

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return features + state, features + state


def core_of(name: str, layers: int, dtype: torch.dtype) -> Core:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        core = core_factory(name)(INPUT, SIZE, layers).to(dtype)
    flat = FlatParameters({"core": dict(core.named_parameters())})
    flat.buffer += torch.from_numpy(stream(1, "noise").normal(0, 0.1, flat.buffer.shape)).to(dtype)
    return core


def features_of(count: int, dtype: torch.dtype) -> Iterator[Tensor]:
    for rows in stream(1, "features").normal(0, 1, (10, count, INPUT)):
        yield torch.from_numpy(rows).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", BUILT_IN)
def test_numpy_cores_equal_pytorch(name: str, layers: int, count: int, dtype: torch.dtype) -> None:
    core = core_of(name, layers, dtype)
    step, state = stepper(core, count), torch.zeros(count, core.state_size, dtype=dtype)
    numpy_state = state.numpy().copy()
    for t, rows in enumerate(features_of(count, dtype)):
        if t == 6:
            numpy_state[-1] = state[-1] = 0
        with torch.no_grad():
            output, state = core.step(rows, state)
        numpy_output, numpy_state = step(rows.numpy(), numpy_state)
        assert numpy_output.dtype == numpy_state.dtype == output.numpy().dtype
        np.testing.assert_allclose(numpy_output, output, rtol=0, atol=TOLERANCE[dtype])
        np.testing.assert_allclose(numpy_state, state, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_state_argument_is_not_changed(name: str) -> None:
    core = core_of(name, 2, torch.float64)
    state = stream(1, "state").normal(0, 1, (3, core.state_size))
    argument, step = state.copy(), stepper(core, 3)
    for rows in features_of(3, torch.float64):
        _, new_state = step(rows.numpy(), argument)
        assert new_state is not argument
    np.testing.assert_array_equal(argument, state)


def test_a_user_defined_core_is_stepped_by_pytorch() -> None:
    core, total = CumulativeSum(), np.zeros((3, INPUT))
    step, state = stepper(core, 3), total
    for rows in features_of(3, torch.float64):
        total = total + rows.numpy()
        output, state = step(rows.numpy(), state)
        np.testing.assert_array_equal(output, total)

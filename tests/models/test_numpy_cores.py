"""Cores in NumPy against the same in PyTorch."""

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


class Sum(Core):
    """A user's own: the sum of all features so far."""

    output_size = state_size = INPUT

    def step(self, features: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return features + state, features + state


def core_of(name: str, layers: int, dtype: torch.dtype) -> Core:
    with torch.random.fork_rng():
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
def test_equals_pytorch(name: str, layers: int, count: int, dtype: torch.dtype) -> None:
    core = core_of(name, layers, dtype)
    step, state = stepper(core, count), torch.zeros(count, core.state_size, dtype=dtype)
    ours = state.numpy().copy()
    for number, rows in enumerate(features_of(count, dtype)):
        if number == 6:
            ours[-1] = state[-1] = 0
        with torch.no_grad():
            output, state = core.step(rows, state)
        found, ours = step(rows.numpy(), ours)
        assert found.dtype == ours.dtype == output.numpy().dtype
        np.testing.assert_allclose(found, output, rtol=0, atol=TOLERANCE[dtype])
        np.testing.assert_allclose(ours, state, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_given_state_stays_as_it_is(name: str) -> None:
    core = core_of(name, 2, torch.float64)
    state = stream(1, "state").normal(0, 1, (3, core.state_size))
    given, step = state.copy(), stepper(core, 3)
    for rows in features_of(3, torch.float64):
        _, after = step(rows.numpy(), given)
        assert after is not given
    np.testing.assert_array_equal(given, state)


def test_a_core_of_a_user_is_stepped_by_pytorch() -> None:
    core, total = Sum(), np.zeros((3, INPUT))
    step, state = stepper(core, 3), total
    for rows in features_of(3, torch.float64):
        total = total + rows.numpy()
        output, state = step(rows.numpy(), state)
        np.testing.assert_array_equal(output, total)

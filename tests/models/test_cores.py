"""Tests of cores: whole sequences give the same results as single steps, wherever episodes begin."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor

from lockstep.models.cores import BuiltInCore, Core, Lstm
from lockstep.models.registry import core_factory
from lockstep.randomness import stream

INPUT, SIZE = 5, 7
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-12}
BUILT_IN = ("lstm", "gru", "mingru")


def no_resets(resets: Tensor) -> None:
    """No episode begins."""


def first_row(resets: Tensor) -> None:
    resets[0] = True


def one_in_the_middle(resets: Tensor) -> None:
    resets[len(resets) // 2, -1] = True


def every_row(resets: Tensor) -> None:
    resets[:] = True


def consecutive_rows(resets: Tensor) -> None:
    resets[1:4, 0] = True
    resets[0, -1] = True


def random_rows(resets: Tensor) -> None:
    resets |= torch.from_numpy(stream(1, "resets").random(resets.shape) < 0.2)


PATTERNS = [no_resets, first_row, one_in_the_middle, every_row, consecutive_rows, random_rows]


def core_of(name: str, layers: int = 1, dtype: torch.dtype = torch.float64) -> Core:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        core = core_factory(name)(INPUT, SIZE, layers).to(dtype)
    for parameter in core.parameters():  # biases are zero initially, which would hide errors in their use
        parameter.data += torch.from_numpy(stream(1, "noise").normal(0, 0.1, parameter.shape)).to(dtype)
    return core


def draw(name: str, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.from_numpy(stream(1, name).normal(0, 1, shape)).to(dtype).requires_grad_()


def step_by_step(core: Core, features: Tensor, state: Tensor, resets: Tensor) -> tuple[Tensor, Tensor]:
    outputs = []
    for row, row_resets in zip(features, resets, strict=True):
        output, state = core.step(row, torch.where(row_resets.unsqueeze(1), 0, state))
        outputs.append(output)
    return torch.stack(outputs), state


def with_gradients(
    function: Callable[..., tuple[Tensor, Tensor]], core: Core, features: Tensor, state: Tensor, resets: Tensor
) -> list[Tensor]:
    """Return the outputs, the final state, and the gradients of a sum of both with random weights."""
    outputs, final_state = function(features, state, resets)
    weights = [draw("weights", *result.shape, dtype=result.dtype).detach() for result in (outputs, final_state)]
    loss = sum((result * weight).mean() for result, weight in zip((outputs, final_state), weights, strict=True))
    return [outputs, final_state, *torch.autograd.grad(loss, [features, state, *core.parameters()])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("length", "count"), [(12, 3), (1, 3), (9, 1), (1, 1)])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", BUILT_IN)
def test_sequences_equal_stepping(
    name: str, layers: int, pattern: Callable[[Tensor], None], length: int, count: int, dtype: torch.dtype
) -> None:
    core, resets = core_of(name, layers, dtype), torch.zeros(length, count, dtype=torch.bool)
    pattern(resets)
    features = draw("features", length, count, INPUT, dtype=dtype)
    state = draw("state", count, core.state_size, dtype=dtype)
    ours = with_gradients(core.sequence, core, features, state, resets)
    theirs = with_gradients(lambda *inputs: step_by_step(core, *inputs), core, features, state, resets)
    assert ours[0].shape == (length, count, core.output_size)
    for found, expected in zip(ours, theirs, strict=True):
        assert found.shape == expected.shape
        assert found.dtype == dtype
        torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("name", BUILT_IN)
def test_unrolled_sequences_equal_stepping(
    name: str, layers: int, pattern: Callable[[Tensor], None], dtype: torch.dtype
) -> None:
    core, resets = core_of(name, layers, dtype), torch.zeros(9, 3, dtype=torch.bool)
    assert isinstance(core, BuiltInCore)
    pattern(resets)
    features, state = draw("features", 9, 3, INPUT, dtype=dtype), draw("state", 3, core.state_size, dtype=dtype)
    weights, inputs = draw("weights", 9, 3, SIZE, dtype=dtype).detach(), [features, state, *core.parameters()]
    results = []
    for run in (core.unroll, partial(step_by_step, core)):
        outputs, after = run(features, state, resets)
        gradients = torch.autograd.grad((outputs * weights).sum(), inputs, materialize_grads=True)
        results.append([outputs, after, *gradients])
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=20 * TOLERANCE[dtype])


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_sequences_of_the_usual_size(name: str, dtype: torch.dtype) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        core = core_factory(name)(64, 128, 1).to(dtype)
    resets = torch.from_numpy(stream(1, "resets").random((32, 16)) < 0.05)
    features, state = draw("features", 32, 16, 64, dtype=dtype), draw("state", 16, core.state_size, dtype=dtype)
    ours = with_gradients(core.sequence, core, features, state, resets)
    theirs = with_gradients(lambda *inputs: step_by_step(core, *inputs), core, features, state, resets)
    for found, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2 * TOLERANCE[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", BUILT_IN)
def test_resets_remove_all_influence_of_earlier_rows(name: str, dtype: torch.dtype) -> None:
    core, resets = core_of(name, 2, dtype), torch.zeros(6, 2, dtype=torch.bool)
    for parameter in core.parameters():
        parameter.data *= 10
    resets[0, 0] = resets[3, 1] = True
    features, state = draw("features", 6, 2, INPUT, dtype=dtype), draw("state", 2, core.state_size, dtype=dtype)
    outputs, final_state = core.sequence(features, state, resets)
    feature_gradient, state_gradient = torch.autograd.grad(outputs[3:, 1].sum() + final_state.sum(), [features, state])
    assert feature_gradient[3:].ne(0).any()
    assert not feature_gradient[:3, 1].any()
    assert not state_gradient.any()
    with torch.no_grad():
        state *= 100
        features[:3, 1] *= 100
    other_outputs, other_final_state = core.sequence(features, state, resets)
    assert not torch.equal(other_outputs[:3, 1], outputs[:3, 1])
    assert torch.equal(other_outputs[:, 0], outputs[:, 0])
    assert torch.equal(other_outputs[3:, 1], outputs[3:, 1])
    assert torch.equal(other_final_state, final_state)


@pytest.mark.parametrize("name", BUILT_IN)
def test_results_keep_their_dtype_under_autocast(name: str) -> None:
    core, resets = core_of(name, 2, torch.float32), torch.zeros(6, 2, dtype=torch.bool)
    resets[3, 1] = True
    features = draw("features", 6, 2, INPUT, dtype=torch.float32)
    state = draw("state", 2, core.state_size, dtype=torch.float32)
    expected = [*core.sequence(features, state, resets), *core.step(features[0], state)]
    with torch.autocast("cpu", torch.bfloat16):
        found = [*core.sequence(features, state, resets), *core.step(features[0], state)]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0.05)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights are not part:UserWarning")  # as in every rank
@pytest.mark.parametrize("pattern", [no_resets, random_rows])
@pytest.mark.parametrize("name", BUILT_IN)
def test_gpu_gives_the_same_gradients_up_to_rounding_and_the_same_bits_again(
    name: str, pattern: Callable[[Tensor], None]
) -> None:
    gradients = []
    for device in ("cpu", "cuda", "cuda"):
        core = core_of(name, 2).to(device)
        resets = torch.zeros(12, 3, dtype=torch.bool)
        pattern(resets)
        features, state = (
            draw(kind, *shape).to(device)
            for kind, shape in (("features", (12, 3, INPUT)), ("state", (3, core.state_size)))
        )
        outputs, after = core.sequence(features, state, resets.to(device))
        (outputs.square().sum() + after.sum()).backward()
        gradients.append(torch.cat([parameter.grad.flatten().cpu() for parameter in core.parameters()]))
    assert torch.allclose(gradients[0], gradients[1], rtol=0, atol=1e-9)
    assert torch.equal(gradients[1], gradients[2])


@pytest.mark.parametrize("name", BUILT_IN)
def test_initial_weights_follow_from_the_generator(name: str) -> None:
    first, second = core_of(name), core_of(name)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


@pytest.mark.parametrize("name", BUILT_IN)
def test_initial_weights_are_orthogonal_per_gate(name: str) -> None:
    core = core_factory(name)(INPUT, SIZE, 2)
    for parameter in core.parameters():
        for block in parameter.detach().split(SIZE):
            if block.dim() == 2:
                product = block.t() @ block
                torch.testing.assert_close(product, torch.eye(len(product)), rtol=0, atol=1e-5)


def test_the_initial_forget_bias_of_an_lstm_is_1() -> None:
    for bias in Lstm(INPUT, SIZE, 2).biases:
        np.testing.assert_array_equal(bias.detach().view(4, SIZE), [[0] * SIZE, [1] * SIZE, [0] * SIZE, [0] * SIZE])

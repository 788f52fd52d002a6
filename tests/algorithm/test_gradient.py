"""The gradient of a minibatch from the sums of its microbatches."""

import pytest
import torch
from tests.watched import DISCRETE, agent_of

from lockstep.algorithm.batch import Microbatch, RowScalars
from lockstep.algorithm.gradient import OrderedGradient
from lockstep.algorithm.loss import LOSS_SCALARS
from lockstep.compiling.kernels import MOST_ROWS, InterpretedKernel
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.group.solo import Solo
from lockstep.ppo.settings import PPOConfig


def test_kernels_process_large_parts_in_blocks_of_at_most_two_sizes() -> None:
    """Each block size needs its own kernel."""
    agent, sizes = agent_of(), []
    count, width = 2 * MOST_ROWS + 3, DISCRETE.observation_size + 1 + len(RowScalars._fields)
    rows = torch.randn(count, width, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    rows[:, DISCRETE.observation_size] = 1
    aim = torch.full((len(LOSS_SCALARS),), 0.5, dtype=torch.float64)

    def counting(formula, examples):
        sizes.append(len(examples[2]))
        return formula

    expected = OrderedGradient(agent, PPOConfig(), Solo())([Microbatch(rows)], aim, (True, True))
    ordered = OrderedGradient(agent, PPOConfig(), Solo(), counting)
    ordered.make_kernels(Microbatch(rows), (True, True))
    assert sizes == [172, 171]
    assert torch.allclose(ordered([Microbatch(rows)], aim, (True, True)), expected, rtol=1e-12)
    assert sizes == [172, 171], "no kernel is made while training"


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("count", [7, MOST_ROWS + 1, 2 * MOST_ROWS + 3])
def test_sums_over_blocks_and_microbatches_are_not_overwritten(count: int, microbatches: int) -> None:
    """An interpreted kernel writes its results to the same tensors at every call."""
    agent, aim = agent_of(), torch.full((len(LOSS_SCALARS),), 0.5, dtype=torch.float64)
    rows = torch.randn(
        microbatches, count, agent.layout.width, dtype=torch.float64, generator=torch.Generator().manual_seed(5)
    )
    rows[:, :, DISCRETE.observation_size] = 1
    minibatch = [Microbatch(microbatch) for microbatch in rows]
    counts = [microbatches]
    expected = OrderedGradient(agent, PPOConfig(), Solo(counts))(minibatch, aim, (True, True))
    found = OrderedGradient(agent, PPOConfig(), Solo(counts), InterpretedKernel)(minibatch, aim, (True, True))
    assert torch.allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("count", [MOST_ROWS + 1, 2 * MOST_ROWS + 3, 3000])
@pytest.mark.parametrize("share", [0.25, 1 / 7])
def test_blocks_train_the_predictor_on_the_same_rows(count: int, share: float) -> None:
    """`curiosity.share` takes every n-th row of a microbatch: blocks of a kernel must start at multiples of n."""
    agent = agent_of(curiosity=CuriosityConfig("rnd", share=share))
    rows = torch.randn(count, agent.layout.width, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    rows[:, DISCRETE.observation_size] = 1
    aim = torch.full((len(LOSS_SCALARS),), 0.5, dtype=torch.float64)
    expected = OrderedGradient(agent, PPOConfig(), Solo())([Microbatch(rows)], aim, (True, True))
    blocks = OrderedGradient(agent, PPOConfig(), Solo(), lambda formula, examples: formula)
    assert torch.allclose(blocks([Microbatch(rows)], aim, (True, True)), expected, rtol=1e-10)


def test_results_of_kernels_show_a_kernel_that_rounds_differently() -> None:
    def results(make_kernel) -> list[torch.Tensor]:
        agent = agent_of()
        gradient = OrderedGradient(agent, PPOConfig(), Solo(), make_kernel)
        for count in (8, MOST_ROWS + 1):
            rows = torch.zeros(count, agent.layout.width, dtype=torch.float64)
            gradient.make_kernels(Microbatch(rows), (True, True))
        return [*gradient.kernel_results()]

    exact, again = (results(lambda formula, examples: formula) for _ in range(2))
    rounded = results(lambda formula, examples: lambda *tensors: [formula(*tensors)[0] * (1 + 1e-15)])
    assert len(exact) == 3
    assert all(result.isfinite().all() and result.any() for result in exact)
    assert all(map(torch.equal, exact, again))
    assert not any(map(torch.equal, exact, rounded))

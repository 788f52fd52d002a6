"""CUDA graphs give the bits of the operations that they record."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from tests.algorithm.test_update import CONTINUOUS, DISCRETE, agent_of
from torch import Tensor

from lockstep.algorithm.acting_step import ActingStep
from lockstep.algorithm.batch import Microbatch
from lockstep.algorithm.gradient import GradientFormula, OrderedGradient
from lockstep.algorithm.loss import Loss
from lockstep.compiling.graphs import cuda_graph
from lockstep.envs.spaces import Spaces
from lockstep.group.solo import Solo
from lockstep.ppo.adam import Adam
from lockstep.ppo.settings import PPOConfig

pytestmark = pytest.mark.gpu


@dataclass(frozen=True)
class Affine:
    """Formula for tests."""

    key = "affine"

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Evaluate the formula."""
        factor, summand = tensors
        return factor * 3 + summand, factor.sum()


def test_results_are_new_tensors_and_arguments_may_be_on_the_cpu() -> None:
    factor = torch.arange(4.0, device="cuda")
    kernel = cuda_graph(Affine(), (factor, torch.zeros(4)))
    first, total = kernel(factor, torch.ones(4))
    second, _ = kernel(factor + 1, torch.ones(4))
    assert first.tolist() == [1, 4, 7, 10]
    assert second.tolist() == [4, 7, 10, 13]
    assert (first.device, total.item()) == (factor.device, 6)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_recorded_gradient_has_the_bits_of_the_operations(spaces: Spaces) -> None:
    agent, config = agent_of(spaces, device="cuda"), PPOConfig()
    gradient = OrderedGradient(agent, config, Solo([1]), cuda_graph)
    generator = torch.Generator().manual_seed(0)
    for _ in range(3):
        rows = torch.rand(64, agent.layout.width, generator=generator, dtype=agent.dtype).to("cuda")
        scalars = torch.rand(5, generator=generator, dtype=agent.dtype).to("cuda")
        expected = GradientFormula(Loss(agent, config, (True, True))).eager(Microbatch(rows), scalars)
        assert torch.equal(gradient([Microbatch(rows)], scalars, (True, True)), expected)
        agent.flat.buffer.mul_(0.9)


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
def test_recorded_acting_has_the_bits_of_the_operations(spaces: Spaces) -> None:
    agent = agent_of(spaces, normalize=True, device="cuda")
    components = agent.policy, agent.distribution, agent.normalize
    recorded, plain = ActingStep(*components, cuda_graph), ActingStep(*components)
    for iteration in range(3):
        noise = agent.distribution.noise(np.random.default_rng(iteration), 1, 4)
        drawn = torch.from_numpy(noise[0]).to("cuda", agent.dtype)
        observations = torch.full((4, spaces.observation_size), iteration / 3, dtype=agent.dtype)
        with torch.inference_mode():
            found, expected = (step(drawn, observations, None, None) for step in (recorded, plain))
        assert torch.equal(found.actions, expected.actions)
        assert torch.equal(found.parameters, expected.parameters)
        agent.flat.buffer.mul_(0.9)  # a recorded step reads the current weights


def test_recorded_optimizer_has_the_bits_of_the_operations() -> None:
    weights = []
    for make_kernel in ({}, {"make_kernel": cuda_graph}):
        tensor = torch.linspace(-1, 1, 100, device="cuda")
        adam = Adam(tensor, {"all": 100}, 1e-5, 0.5, 1, **make_kernel)
        for step in range(3):
            total = torch.linspace(0, step + 1, 101, device="cuda")
            adam.propose(total * 2, 4, {"all": 0.1})  # not accepted
            adam.propose(total, 4, {"all": 0.1})
            adam.accept()
        weights.append((tensor, adam.first, adam.second))
    assert all(torch.equal(*pair) for pair in zip(*weights, strict=True))

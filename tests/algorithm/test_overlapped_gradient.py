"""Tests of gradients of which a part is added while the rest is computed."""

import numpy as np
import pytest
import torch
from tests.compiling.formulas import IMAGES, formula_of
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Microbatch
from lockstep.algorithm.gradient import OrderedGradient
from lockstep.algorithm.overlapped_gradient import OverlappedGradient, make_ordered_gradient
from lockstep.compiling import kernels
from lockstep.compiling.kernels import InterpretedKernel, eager
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.group.group import PendingSum
from lockstep.group.solo import Solo
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.settings import PPOConfig

TRAINED = (True, True)
NONE = np.zeros(0, np.float32)


class InBackground(Solo):
    """Group of one rank that adds rows in the background, and records what it adds."""

    def __init__(self, counts: list[int]) -> None:
        super().__init__(counts)
        self.begun: list[Tensor] = []

    def adds_in_background(self, row_bytes: int) -> bool:
        return True

    def begin_reduce(self, own_rows: Tensor, phase: str) -> PendingSum:
        self.begun.append(own_rows)
        return super().begin_reduce(own_rows, phase)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("block", [4, 100])
@pytest.mark.parametrize(
    ("settings", "curiosity"),
    [
        ({"shared": True}, CuriosityConfig()),
        ({"head_hidden": (5,)}, CuriosityConfig("rnd", hidden=(8,), feature_size=4, channels=1)),
    ],
)
def test_bits_are_those_of_gradients_that_are_added_at_the_end(
    monkeypatch: pytest.MonkeyPatch, settings: dict, curiosity: CuriosityConfig, block: int, microbatches: int
) -> None:
    monkeypatch.setattr(kernels, "_MOST_ELEMENTS", block * IMAGES.pixel_count)
    config, policy = PPOConfig(), PolicyConfig(**settings)
    agent = Agent(IMAGES, policy, False, 1, torch.float32, curiosity=curiosity)
    _, (_, scalars, *fields) = formula_of(IMAGES, torch.float32, policy, config, curiosity, 10 * microbatches)
    rows, pixels, *following = (field.split(10) for field in fields)
    parts = zip(rows, pixels, *following, strict=True)
    minibatch = [Microbatch(row, pixel, None, *after) for row, pixel, *after in parts]
    group = InBackground([microbatches])
    gradients = [
        OrderedGradient(agent, config, Solo([microbatches]), InterpretedKernel),
        make_ordered_gradient(agent, config, group, InterpretedKernel, 128),
    ]
    assert isinstance(gradients[1], OverlappedGradient)
    for scale in (1, 3):
        found, expected = (gradient(minibatch, scale * scalars, TRAINED) for gradient in gradients)
        assert torch.equal(found, expected)
    assert [len(begun) for begun in group.begun] == [microbatches] * 2
    convolutions = sum(p.numel() for p in agent.flat.parameters.values() if p.dim() == 4)
    assert 0 < group.begun[0].shape[1] < len(found) - convolutions + 1


def test_gradients_are_added_at_the_end_with_few_rows_and_without_kernels_or_convolutions() -> None:
    agent = Agent(IMAGES, PolicyConfig(), False, 1, torch.float32)
    few = make_ordered_gradient(agent, PPOConfig(), InBackground([1]), InterpretedKernel, 127)
    assert type(few) is OrderedGradient
    assert type(make_ordered_gradient(agent, PPOConfig(), InBackground([1]), eager, 128)) is OrderedGradient
    assert type(make_ordered_gradient(agent, PPOConfig(), Solo(), InterpretedKernel, 128)) is OrderedGradient
    agent = Agent(Spaces(3, (4,), NONE, NONE), PolicyConfig(), False, 1, torch.float32)
    assert type(make_ordered_gradient(agent, PPOConfig(), InBackground([1]), InterpretedKernel, 128)) is OrderedGradient

"""Disagreement of an ensemble."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from lockstep.curiosity.curiosity import Curiosity, Images, Reduce, Transitions, fixed
from lockstep.curiosity.settings import CuriosityConfig

if TYPE_CHECKING:
    from lockstep.envs.spaces import Spaces

__all__ = ["Disagreement", "Ensemble"]

_BLOCK = 1024
"""Steps that go through the ensemble at once, so that what lies between two layers stays in the cache."""


class Disagreement(Curiosity):
    """How much do several predictions of the same differ (Pathak et al. 2019, arXiv:1906.04161)?

        reward_t = variance over members i of f_i(φ(o_t), a_t), mean over features        equation 1, up to its scale
        L = Σ over members i of the mean over features of (f_i(φ(o_t), a_t) - φ(o_{t+1}))²

    All members come to predict the mean of what follows, so what is random brings no reward for long, unlike the error of a single
    prediction. φ is fixed and random, as the paper's features are where none are learned. The members differ by their first weights
    alone; the authors' program also leaves a fifth of the samples out for each, others every time. Nor is the policy trained through
    the reward's gradient, the paper's second part: here it is a reward like any other.
    """

    losses = ("forward_loss",)

    def __init__(self, spaces: "Spaces", config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        """See `Curiosity`."""
        super().__init__(spaces, config, squash, dtype)
        size = config.feature_size
        self.encoder = fixed(self.embedding())
        self.ensemble = Ensemble(config.ensemble, size + self.code.size, config.hidden[-1], size).to(dtype)

    @torch.no_grad()
    def reward(
        self, steps: Sequence[Transitions], carried: Sequence[dict[str, Tensor]], reduce: Reduce
    ) -> list[Tensor]:
        """See `Curiosity.reward`."""
        found, device = [], self.ensemble.first.device
        for own in steps:
            given = torch.cat([self.embed(self.encoder, own)[:-1], own.actions], -1).flatten(0, 1)
            guesses = (self.ensemble(block.to(device)) for block in given.split(_BLOCK))
            differ = torch.cat([guess.var(0, correction=0).mean(1).cpu() for guess in guesses])
            found.append(differ.view(own.valid.shape))
        return found

    @property
    def width(self) -> int:
        """See `Curiosity.width`."""
        return 2 * self.config.feature_size + self.code.size

    def columns(self, steps: Transitions) -> Tensor:
        """Features before, action, features after: made once per rollout, for the encoder stays as it is."""
        features = self.embed(self.encoder, steps)
        return torch.cat([features[:-1], steps.actions, features[1:]], -1).flatten(0, 1)

    def loss(self, columns: Tensor, images: Images) -> Tensor:
        """See `Curiosity.loss`."""
        size = self.config.feature_size
        given, target = columns.split([columns.shape[1] - size, size], 1)
        missed: Tensor = self.ensemble(given) - target
        return missed.square().mean(2).sum(0).unsqueeze(1)


class Ensemble(nn.Module):
    """Networks of one hidden layer with ReLUs, all of one shape, in two products.

    First weights are orthogonal with gain √2, then 1, drawn from PyTorch's global generator for one member after the other.
    """

    def __init__(self, members: int, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(members, inputs, hidden))
        self.first_bias = nn.Parameter(torch.zeros(members, 1, hidden))
        self.second = nn.Parameter(torch.empty(members, hidden, outputs))
        self.second_bias = nn.Parameter(torch.zeros(members, 1, outputs))
        for gain, weights in ((math.sqrt(2), self.first), (1.0, self.second)):
            for own in weights.detach():
                nn.init.orthogonal_(own, gain)

    def extra_repr(self) -> str:
        """Sizes."""
        return f"{tuple(self.first.shape)}, {tuple(self.second.shape)}"

    def forward(self, rows: Tensor) -> Tensor:
        """`[K, inputs]` -> `[members, K, outputs]`."""
        hidden = torch.baddbmm(self.first_bias, rows.expand(len(self.first), -1, -1), self.first).relu()
        return torch.baddbmm(self.second_bias, hidden, self.second)

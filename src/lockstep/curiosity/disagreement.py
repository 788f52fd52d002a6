"""Disagreement of an ensemble."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lockstep.curiosity.curiosity import Curiosity, Images, Reduce, States, Transitions, fixed
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.models.layers import orthogonal

__all__ = ["Disagreement", "Ensemble"]

_BLOCK = 1024
"""Steps per forward pass of the ensemble, so that intermediate results stay in the cache."""


class Disagreement(Curiosity):
    """Variance of the predictions of an ensemble (Pathak et al. 2019, arXiv:1906.04161).

        reward_t = variance over members i of f_i(φ(o_t), a_t), mean over features        equation 1, up to its scale
        L = Σ over members i of the mean over features of (f_i(φ(o_t), a_t) - φ(o_{t+1}))²

    All members learn to predict the mean of the next features, so random transitions lose their reward, unlike with the error of a single
    prediction. φ is fixed and random, as the paper's features are where none are learned. The members differ only in their initial weights;
    the authors' program also omits a random fifth of the samples for each. The policy is not trained through the gradient of the reward, as
    in the paper's second part.
    """

    losses = ("forward_loss",)

    def __init__(self, spaces: Spaces, config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        super().__init__(spaces, config, squash, dtype)
        size = config.feature_size
        self.encoder = fixed(self.embedding())
        self.ensemble = Ensemble(config.ensemble, size + self.action_encoder.size, config.hidden[-1], size).to(dtype)

    @torch.no_grad()
    def reward(self, shards: Sequence[Transitions], states: States, reduce: Reduce) -> list[Tensor]:
        """See `Curiosity.reward`."""
        rewards = []
        for transitions in shards:
            features = self.embed(self.encoder, transitions)[:-1]
            inputs = torch.cat([features, transitions.actions], -1).flatten(0, 1)
            variances = torch.cat([self.compute(self.variance, block) for block in inputs.split(_BLOCK)])
            rewards.append(variances.view(transitions.valid.shape))
        return rewards

    def variance(self, rows: Tensor) -> Tensor:
        """Return the variance of the predictions `[K]` for rows `[K, inputs]` of the ensemble, averaged over features."""
        predictions: Tensor = self.ensemble(rows)
        variances: Tensor = (predictions - predictions.mean(0)).square().mean((0, 2))
        return variances

    @property
    def width(self) -> int:
        """See `Curiosity.width`."""
        return 2 * self.config.feature_size + self.action_encoder.size

    def columns(self, transitions: Transitions) -> Tensor:
        """Return the features before, the action, and the features after every step. They are computed once per rollout: the encoder is fixed."""
        features = self.embed(self.encoder, transitions)
        return torch.cat([features[:-1], transitions.actions, features[1:]], -1).flatten(0, 1)

    def loss(self, columns: Tensor, images: Images) -> Tensor:
        """See `Curiosity.loss`."""
        size = self.config.feature_size
        inputs, target = columns.split([columns.shape[1] - size, size], 1)
        residuals: Tensor = self.ensemble(inputs) - target
        return residuals.square().mean(2).sum(0).unsqueeze(1)


class Ensemble(nn.Module):
    """Networks of equal shape with one hidden layer of ReLUs, computed by two batched products.

    Initial weights are orthogonal with gain √2, then 1, drawn from PyTorch's global generator member by member.
    """

    def __init__(self, members: int, inputs: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.empty(members, inputs, hidden))
        self.first_bias = nn.Parameter(torch.zeros(members, 1, hidden))
        self.second = nn.Parameter(torch.empty(members, hidden, outputs))
        self.second_bias = nn.Parameter(torch.zeros(members, 1, outputs))
        for gain, weights in ((math.sqrt(2), self.first), (1.0, self.second)):
            for member in weights.detach():
                orthogonal(member, gain)

    def extra_repr(self) -> str:
        """Return the shapes of the weights."""
        return f"{tuple(self.first.shape)}, {tuple(self.second.shape)}"

    def forward(self, rows: Tensor) -> Tensor:
        """Return the outputs `[members, K, outputs]` of all members for rows `[K, inputs]`."""
        hidden = torch.baddbmm(self.first_bias, rows.expand(len(self.first), -1, -1), self.first).relu()
        return torch.baddbmm(self.second_bias, hidden, self.second)

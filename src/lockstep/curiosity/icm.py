"""The intrinsic curiosity module."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lockstep.curiosity.curiosity import Images, Reduce, States, Transitions
from lockstep.curiosity.inverse import InverseDynamicsCuriosity
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces

__all__ = ["ICM"]


class ICM(InverseDynamicsCuriosity):
    """Error of predicting the features of the next observation (Pathak et al. 2017, arXiv:1705.05363).

        L_I = -log P(a_t | φ(o_t), φ(o_{t+1}))                   inverse loss, equation 3: trains φ
        L_F = ½ ‖φ̂(φ(o_t), a_t) - φ(o_{t+1})‖²                   forward loss, equation 5
        reward_t = L_F                                            equation 6, up to its scale
        L = (1 - β) L_I + β L_F                                   equation 7

    The inverse loss does not train φ to represent what the agent can't influence. Changes of such parts therefore give little reward.
    """

    losses = ("inverse_loss", "forward_loss")

    def __init__(self, spaces: Spaces, config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        super().__init__(spaces, config, squash, dtype)
        size, width = config.feature_size, config.hidden[-1]
        self.ahead = nn.Sequential(
            nn.Linear(size + self.action_encoder.size, width), nn.ReLU(), nn.Linear(width, size)
        ).to(dtype)

    @property
    def weights(self) -> tuple[float, ...]:
        """See `Curiosity.weights`."""
        return 1 - self.config.forward_share, self.config.forward_share

    @torch.no_grad()
    def reward(self, shards: Sequence[Transitions], states: States, reduce: Reduce) -> list[Tensor]:
        """See `Curiosity.reward`."""
        rewards = []
        for transitions in shards:
            features = self.embed(self.inverse.features, transitions)
            inputs = torch.cat([features[:-1], transitions.actions], -1).flatten(0, 1)
            residuals = self.compute(self.ahead, inputs).view_as(features[1:]) - features[1:]
            rewards.append(0.5 * residuals.square().sum(-1))
        return rewards

    def loss(self, columns: Tensor, images: Images) -> Tensor:
        """See `Curiosity.loss`."""
        inverse, before, after = self.inverse(columns, images)
        residuals = self.ahead(torch.cat([before, columns[:, -self.action_encoder.size :]], 1)) - after
        return torch.stack([inverse, 0.5 * residuals.square().sum(1)], 1)

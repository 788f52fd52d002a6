"""Random network distillation."""

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor

from lockstep.curiosity.curiosity import Curiosity, Images, Reduce, States, Transitions, fixed
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces

__all__ = ["RND"]


class RND(Curiosity):
    """Error of predicting the outputs of a random network (Burda et al. 2019, arXiv:1810.12894, section 2.2).

        reward_t = mean over features of (f̂(o_{t+1}) - f(o_{t+1}))²

    f is fixed and random; f̂, with one more hidden layer, is trained to equal f on the observations collected. Observations are normalized by
    their running statistics and clipped to ±5 (section 2.4), because otherwise f may carry little information about them.
    """

    losses: ClassVar[tuple[str, ...]] = ("rnd_loss",)
    sees_images = True

    def __init__(self, spaces: Spaces, config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        super().__init__(spaces, config, squash, dtype)
        self.target = fixed(self.embedding())
        self.predictor = self.embedding(extra=1)

    def reward(self, shards: Sequence[Transitions], states: States, reduce: Reduce) -> list[Tensor]:
        """See `Curiosity.reward`."""
        return [self.errors(transitions) for transitions in shards]

    def errors(self, transitions: Transitions) -> Tensor:
        """Return the prediction error `[T, B]` for the next observation of each step."""
        residuals = self.embed(self.predictor, transitions) - self.embed(self.target, transitions)
        error: Tensor = residuals[1:].square().mean(-1)
        return error

    @property
    def width(self) -> int:
        """See `Curiosity.width`."""
        return self.feature_size + self.config.feature_size

    def columns(self, transitions: Transitions) -> Tensor:
        """Return the next observation of each step and its target, which is computed once per rollout instead of once per epoch."""
        target = self.embed(self.target, transitions)
        return torch.cat([transitions.features[1:], target[1:]], -1).flatten(0, 1)

    def loss(self, columns: Tensor, images: Images) -> Tensor:
        """See `Curiosity.loss`."""
        features, target = columns.split([self.feature_size, columns.shape[1] - self.feature_size], 1)
        predicted = self.predictor(features, None if images is None else self.normalize_images(images[1]))
        squares: Tensor = (predicted - target).square()
        return squares.mean(1, keepdim=True)

"""Inverse dynamics: predicting the action between two observations."""

import torch
from torch import Tensor, nn

from lockstep.curiosity.curiosity import Curiosity, Images, Transitions
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces

__all__ = ["InverseDynamics", "InverseDynamicsCuriosity"]


class InverseDynamics(nn.Module):
    """Features φ and a network with one hidden layer that predicts actions from them (Pathak et al. 2017, arXiv:1705.05363, equation 3).

        L = -log P(a_t | φ(o_t), φ(o_{t+1}))

    Such features represent what the agent can influence, and may ignore the rest.
    """

    def __init__(self, method: Curiosity) -> None:
        """Create the networks for the observations and actions of `method`."""
        super().__init__()
        size, width = method.config.feature_size, method.config.hidden[-1]
        self.features = method.embedding()
        layers = nn.Linear(2 * size, width), nn.ReLU(), nn.Linear(width, method.action_encoder.size)
        self.guess = nn.Sequential(*layers).to(method.dtype)  # the action head; checkpoints have this name
        self._sizes = [method.feature_size, method.feature_size, method.action_encoder.size]
        self._action_encoder, self._normalize_images = method.action_encoder, method.normalize_images

    @property
    def width(self) -> int:
        """Number of `columns`."""
        return sum(self._sizes)

    def columns(self, transitions: Transitions) -> Tensor:
        """Return both observations and the action of every step, `[T × B, width]`."""
        return torch.cat([transitions.features[:-1], transitions.features[1:], transitions.actions], -1).flatten(0, 1)

    def forward(self, columns: Tensor, images: Images) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss `[K]`, and φ of the observations before and after the step, `[K, size]` each."""
        observations, next_observations, action = columns.split(self._sizes, 1)
        before = self.features(observations, None if images is None else self._normalize_images(images[0]))
        after = self.features(next_observations, None if images is None else self._normalize_images(images[1]))
        return self._action_encoder.loss(self.guess(torch.cat([before, after], 1)), action), before, after


class InverseDynamicsCuriosity(Curiosity):
    """Base class of methods that use the features of `InverseDynamics`."""

    sees_images = True

    def __init__(self, spaces: Spaces, config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        super().__init__(spaces, config, squash, dtype)
        self.inverse = InverseDynamics(self)

    @property
    def width(self) -> int:
        """See `Curiosity.width`."""
        return self.inverse.width

    def columns(self, transitions: Transitions) -> Tensor:
        """Return both observations and the action of every step."""
        return self.inverse.columns(transitions)

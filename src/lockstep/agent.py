"""The one thing that is trained, published, saved and loaded: policy, critic and moments."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.acting import Actor, Change, NumpyActor, TorchActor, clip, normalize, squash, unchanged
from lockstep.models.flat import FlatParameters
from lockstep.models.inference import Inference
from lockstep.models.moments import Moments
from lockstep.models.policy import Autocast, Policy
from lockstep.models.settings import PolicyConfig
from lockstep.ppo.distributions import Categorical, Gaussian
from lockstep.randomness import seed_of
from lockstep.state import check_state

if TYPE_CHECKING:
    from lockstep.envs.spaces import Spaces

__all__ = ["Agent"]

_OBSERVATION_LIMIT = 10.0
_CPU = torch.device("cpu")


class Agent:
    """Policy, critic, observation and return moments.

    Shapes: `[…, O]` observations as the environments give them. Moments are applied here, so nobody else normalizes. The
    networks are on `device`; what is passed in and given back, saved and loaded is on the CPU, unless it says otherwise.
    """

    def __init__(
        self,
        spaces: "Spaces",
        config: PolicyConfig,
        normalize_rewards: bool,
        seed: int,
        dtype: torch.dtype,
        device: torch.device = _CPU,
        autocast: Autocast = nullcontext,
    ) -> None:
        """First weights come from the stream `weights` of `seed`, the same for every device."""
        self.spaces = spaces
        self.device = device
        self.dtype = dtype
        self.squash = config.squash
        self.distribution = (
            Gaussian(spaces.action_size) if spaces.discrete_actions is None else Categorical(spaces.discrete_actions)
        )
        generator = torch.Generator().manual_seed(seed_of(seed, "weights"))
        head, std = sum(spaces.choices) + spaces.continuous_size, spaces.continuous_size
        self.policy = Policy(spaces.observation_size, head, std, config, generator, dtype, autocast).to(device)
        self.flat = FlatParameters(self.policy.parts())
        self.observation_moments = Moments(spaces.observation_size) if config.normalize_observations else None
        self.return_moments = Moments(1) if normalize_rewards else None
        with autocast():
            own_precision = not torch.is_autocast_enabled(device.type)
        self._inference = Inference(self.policy, config.activation) if device.type == "cpu" and own_precision else None
        self._kind = torch.empty(0, dtype=dtype).numpy().dtype
        self.refresh()

    def refresh(self) -> None:
        """Brings the normalization in step with the moments, after those have changed."""
        if self.observation_moments is not None:
            self._shift = self.observation_moments.mean.to(self.device, self.dtype)
            self._scale = self.observation_moments.std.reciprocal().to(self.device, self.dtype)

    def normalize(self, observations: Tensor) -> Tensor:
        """Observations as the networks see them, on the networks' device."""
        observations = observations.to(self.device)
        if self.observation_moments is None:
            return observations
        return ((observations - self._shift) * self._scale).clamp(-_OBSERVATION_LIMIT, _OBSERVATION_LIMIT)

    def actor(self, noise: NDArray[Any], taken: NDArray[Any]) -> Actor:
        """What acts in one rollout, with the weights and moments of now.

        Args:
            noise: `[T, B, …]` of the distribution's kind.
            taken: `[T, B]` or `[T, B, A]`: where actions are written as a rollout stores them.
        """
        fit, count = self._fit(noise.shape[1]), noise.shape[1]
        if self._inference is None:
            drawn = torch.from_numpy(noise).to(self.device, self.dtype)
            return TorchActor(self.policy, self.distribution, self.normalize, fit, drawn, taken)
        see: Change = unchanged
        if self.observation_moments is not None:
            see = normalize(self._shift.numpy(), self._scale.numpy(), _OBSERVATION_LIMIT, count)
        return NumpyActor(self._inference, self.distribution, see, fit, noise, taken)

    def for_environment(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Actions as an environment takes them: within its bounds, by tanh if the policy squashes, else by clipping."""
        return self._fit(len(actions))(actions)

    @torch.inference_mode()
    def values(self, observations: Tensor) -> Tensor:
        """`[…, O]` -> `[…]`."""
        seen = self.normalize(observations)
        if self._inference is None:
            return self.policy.value(seen).cpu()
        return self._inference.value(seen.flatten(0, -2).numpy()).view(seen.shape[:-1])

    @torch.inference_mode()
    def judge(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Values `[T + 1, B]` and log-probabilities `[T, B]` of a whole rollout in one pass.

        Args:
            observations: `[T + 1, B, O]`.
            actions: `[T, B]` or `[T, B, A]`.
        """
        rows, count = observations.shape[:2]
        seen = self.normalize(observations).flatten(0, 1)
        parameters, values = self.policy(seen) if self._inference is None else self._inference.forward(seen.numpy())
        log_probs = self.distribution.log_prob(parameters[: (rows - 1) * count], actions.flatten(0, 1).to(self.device))
        return values.view(rows, count).cpu(), log_probs.view(rows - 1, count).cpu()

    @torch.inference_mode()
    def mode(self, observations: np.ndarray) -> np.ndarray:
        """`[B, O]` -> the most probable actions, ready for an environment."""
        parameters = self.policy.act(self.normalize(torch.from_numpy(observations).to(self.dtype)))
        return self.for_environment(self.distribution.mode(parameters).cpu().numpy())

    @torch.inference_mode()
    def sample(self, observations: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """`[B, O]` -> drawn actions, ready for an environment."""
        noise = self.distribution.noise(generator, 1, len(observations))
        discrete = self.spaces.discrete_actions is not None
        taken = np.empty(noise.shape[:2], np.int64) if discrete else np.empty(noise.shape, self._kind)
        return self.actor(noise, taken).act(0, observations.astype(self._kind))

    def state(self) -> dict[str, Tensor]:
        """Everything, by name: each parameter, then the moments."""
        state = {f"policy.{name}": parameter.detach().cpu() for name, parameter in self.policy.named_parameters()}
        for name, moments in self._moments():
            state |= {f"{name}.{key}": value for key, value in moments.state().items()}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes back `state()`. Raises ValueError, naming the tensor, if one is missing, left over or of another shape."""
        check_state(self.state(), state)
        for name, parameter in self.policy.named_parameters():
            parameter.data.copy_(state[f"policy.{name}"])
        for name, moments in self._moments():
            moments.load({key: state[f"{name}.{key}"] for key in moments.state()})
        self.refresh()

    def published(self) -> list[Tensor]:
        """All that another agent needs to act and judge as this one does: weights and moments, always of the same shapes."""
        return [self.flat.buffer, *(value for _, moments in self._moments() for value in moments.state().values())]

    def take(self, published: Sequence[Tensor]) -> None:
        """Becomes the agent whose `published()` this is."""
        weights, *rest = published
        self.flat.buffer.copy_(weights)
        for _, moments in self._moments():
            names = list(moments.state())
            moments.load(dict(zip(names, rest, strict=False)))
            rest = rest[len(names) :]
        self.refresh()

    def digest(self) -> str:
        """SHA-256 over weights and moments, in hexadecimal: equal for two agents that are equal to the last bit."""
        hashed = hashlib.sha256(self.flat.buffer.cpu().numpy().data)
        for _, moments in self._moments():
            for value in moments.state().values():
                hashed.update(value.numpy().data)
        return hashed.hexdigest()

    def _fit(self, count: int) -> Change:
        """`for_environment`, for `count` actions."""
        if self.spaces.discrete_actions is not None:
            return unchanged
        low, high = (bound.astype(self._kind) for bound in (self.spaces.action_low, self.spaces.action_high))
        return squash(low, high, count) if self.squash else clip(low, high, count)

    def _moments(self) -> list[tuple[str, Moments]]:
        named = (("observation_moments", self.observation_moments), ("return_moments", self.return_moments))
        return [(name, moments) for name, moments in named if moments is not None]

"""The one thing that is trained, published, saved and loaded: policy, critic and moments."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.algorithm.acting import (
    ActionTransform,
    Actor,
    Memory,
    NumpyActor,
    TorchActor,
    after_discrete,
    clip,
    normalize,
    squash,
    unchanged,
)
from lockstep.algorithm.batch import RowLayout
from lockstep.algorithm.networks import Networks
from lockstep.curiosity.methods import make_curiosity
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.models.buffers import TrainedBuffers, persistent_buffers
from lockstep.models.flat import FlatParameters
from lockstep.models.normalization import RunningStatistics
from lockstep.models.numpy_policy import NumpyPolicy
from lockstep.models.policy import Autocast, Policy
from lockstep.models.probe import changed_buffers
from lockstep.models.settings import PolicyConfig
from lockstep.models.state import check_state
from lockstep.ppo.distributions import distribution_of
from lockstep.randomness import seed_of

if TYPE_CHECKING:
    from lockstep.envs.spaces import Spaces
    from lockstep.rollout import Rollout

__all__ = ["OBSERVATION_LIMIT", "Agent", "PolicyRunner"]

OBSERVATION_LIMIT = 10.0
_CPU = torch.device("cpu")
_IMAGES = 256
"""Images that go through the networks at once."""


class Agent:
    """Policy, critic, observation and return moments.

    Shapes: `[…, O]` observations and `[…, P]` pixels as the environments give them. Moments are applied here, so nobody else normalizes. The
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
        curiosity: CuriosityConfig = CuriosityConfig(),  # noqa: B008
    ) -> None:
        """First weights come from the streams `weights` and `curiosity` of `seed`, the same for every device."""
        self.spaces = spaces
        self.device = device
        self.dtype = dtype
        self.squash = config.squash
        self.distribution = distribution_of(spaces.choices, spaces.continuous_size)
        generator = torch.Generator().manual_seed(seed_of(seed, "weights"))
        head, std = sum(spaces.choices) + spaces.continuous_size, spaces.continuous_size
        seen = spaces.images, spaces.mask_size, curiosity.two_heads
        self.policy = Policy(spaces.observation_size, head, std, config, generator, dtype, autocast, *seen)
        self.curiosity = make_curiosity(spaces, curiosity, config.squash, seed, dtype)
        """What rewards for the new, if anything does."""
        changed = []
        if device.type != "meta":  # there, nothing can be computed
            changed = changed_buffers(self.policy, config, spaces.feature_size, spaces.images, dtype)
        self.networks = Networks(self.policy, self.curiosity).to(device)
        self.flat = FlatParameters(self.networks.parts())
        self.buffers = persistent_buffers(self.networks)
        """The persistent buffers of a registered encoder or core, by name."""
        self.trained_buffers = TrainedBuffers(self.networks, [f"policy.{name}" for name in changed])
        self.observation_moments = RunningStatistics(spaces.feature_size) if config.normalize_observations else None
        self.return_moments = RunningStatistics(1) if normalize_rewards else None
        with autocast():
            own_precision = device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        in_numpy = own_precision and self.policy.is_mlp
        self._inference = NumpyPolicy(self.policy, config.activation) if in_numpy else None
        self._kind = torch.empty(0, dtype=dtype, device=_CPU).numpy().dtype
        self.refresh()

    @property
    def state_size(self) -> int:
        """S, numbers that are remembered from step to step; 0 without memory."""
        return self.policy.state_size

    @property
    def layout(self) -> RowLayout:
        """Of the rows that minibatches are made of."""
        own = self.curiosity
        curious, two_heads = (0, False) if own is None else (own.width, own.config.two_heads)
        return RowLayout(self.spaces.observation_size, self.spaces.action_size, curious, two_heads)

    @property
    def plain(self) -> bool:
        """Whether all that the networks see are rows: there are no images and no memory."""
        return self.policy.is_mlp and not self.state_size

    def refresh(self) -> None:
        """Brings the normalization in step with the moments, after those have changed."""
        if self.observation_moments is not None:
            shift, scale = self.observation_moments.mean, self.observation_moments.std.reciprocal()
            mask = shift.new_zeros(self.spaces.mask_size)  # stays as it is
            self._shift = torch.cat([shift, mask]).to(self.device, self.dtype)
            self._scale = torch.cat([scale, mask + 1]).to(self.device, self.dtype)
        if self.curiosity is not None:
            self.curiosity.refresh()

    def normalize(self, observations: Tensor) -> Tensor:
        """Observations as the networks see them, on the networks' device."""
        observations = observations.to(self.device)
        if self.observation_moments is None:
            return observations
        return ((observations - self._shift) * self._scale).clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)

    def actor(self, noise: NDArray[Any], taken: NDArray[Any], memory: Memory | None = None) -> Actor:
        """What acts in one rollout, with the weights and moments of now.

        Args:
            noise: `[T, B, …]` of the distribution's kind.
            taken: `[T, B]` or `[T, B, A]`: where actions are written as a rollout stores them.
            memory: What a policy with memory goes on with.
        """
        fit, count = self._fit(noise.shape[1]), noise.shape[1]
        if self._inference is None:
            drawn = torch.from_numpy(noise).to(self.device, self.dtype)
            return TorchActor(self.policy, self.distribution, self.normalize, fit, drawn, taken, self.values, memory)
        see: ActionTransform = unchanged
        if self.observation_moments is not None:
            see = normalize(self._shift.numpy(), self._scale.numpy(), OBSERVATION_LIMIT, count)
        return NumpyActor(self._inference, self.distribution, see, fit, noise, taken, self.values, memory)

    def for_environment(self, actions: NDArray[Any]) -> NDArray[Any]:
        """Actions as an environment takes them: within its bounds, by tanh if the policy squashes, else by clipping."""
        return self._fit(len(actions))(actions)

    @torch.inference_mode()
    def values(self, observations: Tensor, pixels: Tensor | None = None) -> Tensor:
        """`[…, O]` and, with images, `[…, P]` -> `[…]`; without memory."""
        seen, shape = self.normalize(observations).flatten(0, -2), observations.shape[:-1]
        if self._inference is not None:
            return self._inference.value(seen.numpy()).view(shape)
        if pixels is None or not self.spaces.images:
            return self.policy.value(seen).view(shape).cpu()
        blocks = zip(seen.split(_IMAGES), pixels.flatten(0, -2).split(_IMAGES), strict=True)
        return torch.cat([self.policy.value(rows, images.to(self.device)) for rows, images in blocks]).view(shape).cpu()

    @torch.inference_mode()
    def judge(self, rollout: "Rollout") -> tuple[Tensor, Tensor, Tensor | None]:
        """Values `[T + 1, B]` and log-probabilities `[T, B]` of a whole rollout and, with two heads, values of intrinsic rewards
        `[T + 1, B]`, with the weights of now.
        """
        steps, count = rollout.rewards.shape
        rows, pixels = self.normalize(rollout.observations).flatten(0, 1), rollout.pixels.flatten(0, 1)
        if self.state_size:
            resets = torch.cat([torch.zeros(1, count, dtype=torch.bool), ~rollout.valid]).to(self.device)
            given = (rollout.states[0].to(self.device), resets)
            parameters, values = self.policy(rows, pixels.to(self.device), *given)
        elif self._inference is not None and not self.layout.two_heads:
            parameters, values = self._inference.forward(rows.numpy())
        else:
            blocks = zip(rows.split(_IMAGES), pixels.split(_IMAGES), strict=True)
            found = [self.policy(own, images.to(self.device)) for own, images in blocks]
            parameters, values = (torch.cat(parts) for parts in zip(*found, strict=True))
        actions = rollout.actions.flatten(0, 1).to(self.device)
        log_probs = self.distribution.log_prob(parameters[: steps * count], actions)
        values, intrinsic = values.view(steps + 1, count, -1).cpu(), None
        if self.layout.two_heads:
            intrinsic = values[..., 1].contiguous()
        return values[..., 0].contiguous(), log_probs.view(steps, count).cpu(), intrinsic

    def state(self) -> dict[str, Tensor]:
        """Everything, by name: parameters, persistent buffers, moments. On the CPU, except for an agent on the `meta` device."""
        place = self.device if self.device.type == "meta" else _CPU
        state = {name: parameter.detach().to(place) for name, parameter in self.networks.named_parameters()}
        state |= {name: buffer.to(place).contiguous() for name, buffer in self.buffers.items()}
        for name, moments in self._moments():
            state |= {f"{name}.{key}": value for key, value in moments.state().items()}
        return state

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes back `state()`. Raises ValueError, naming the tensor, if one is missing, left over or of another shape."""
        check_state(self.state(), state)
        for name, parameter in self.networks.named_parameters():
            parameter.data.copy_(state[name])
        for name, buffer in self.buffers.items():
            buffer.copy_(state[name])
        for name, moments in self._moments():
            moments.load({key: state[f"{name}.{key}"] for key in moments.state()})
        self.refresh()

    def published(self) -> list[Tensor]:
        """All that another agent needs to act and judge as this one does: weights, buffers and moments, always of the same shapes."""
        moments = [value for _, moments in self._moments() for value in moments.state().values()]
        return [self.flat.buffer, *self.buffers.values(), *moments]

    def take(self, published: Sequence[Tensor]) -> None:
        """Becomes the agent whose `published()` this is."""
        weights, *rest = published
        self.flat.buffer.copy_(weights)
        for buffer, value in zip(self.buffers.values(), rest, strict=False):
            buffer.copy_(value)
        rest = rest[len(self.buffers) :]
        for _, moments in self._moments():
            names = list(moments.state())
            moments.load(dict(zip(names, rest, strict=False)))
            rest = rest[len(names) :]
        self.refresh()

    def digest(self) -> str:
        """SHA-256 over weights, buffers and moments, in hexadecimal: equal for two agents that are equal to the last bit."""
        hashed = hashlib.sha256(self.flat.buffer.cpu().numpy().data)
        for buffer in self.buffers.values():
            hashed.update(buffer.cpu().reshape(-1).view(torch.uint8).numpy().data)
        for _, moments in self._moments():
            for value in moments.state().values():
                hashed.update(value.numpy().data)
        return hashed.hexdigest()

    def _fit(self, count: int) -> ActionTransform:
        """`for_environment`, for `count` actions."""
        if not self.spaces.continuous_size:
            return unchanged
        low, high = (bound.astype(self._kind) for bound in (self.spaces.action_low, self.spaces.action_high))
        change = squash(low, high, count) if self.squash else clip(low, high, count)
        return after_discrete(len(self.spaces.choices), change) if self.spaces.choices else change

    def _moments(self) -> list[tuple[str, RunningStatistics]]:
        named = [("observation_moments", self.observation_moments), ("return_moments", self.return_moments)]
        own = {} if self.curiosity is None else self.curiosity.moments
        named += [(f"curiosity_moments.{name}", moments) for name, moments in own.items()]
        return [(name, moments) for name, moments in named if moments is not None]


class PolicyRunner:
    """An agent at the controls of `count` environments, outside of training: for `play`, `eval` and other programs."""

    def __init__(self, agent: Agent, count: int = 1, generator: np.random.Generator | None = None) -> None:
        """With `generator` actions are drawn as in training; without, they are the most probable ones."""
        self._agent = agent
        self._count = count
        self._generator = generator
        self.begin()

    def begin(self) -> None:
        """Forgets: all environments begin an episode. `state`, `[count, S]`, is what is remembered."""
        self.state = torch.zeros(
            self._count, self._agent.state_size, dtype=self._agent.dtype, device=self._agent.device
        )

    @torch.inference_mode()
    def act(self, rows: NDArray[Any], pixels: NDArray[Any] | None = None) -> NDArray[Any]:
        """Observations `[count, O]` and, with images, `[count, P]` -> actions as an environment takes them."""
        agent = self._agent
        seen = agent.normalize(torch.from_numpy(np.ascontiguousarray(rows)).to(agent.dtype))
        images = None if pixels is None else torch.from_numpy(np.ascontiguousarray(pixels)).to(agent.device)
        parameters, _, state = agent.policy.act(seen, images, self.state)
        if state is not None:
            self.state = state
        if self._generator is None:
            actions = agent.distribution.mode(parameters)
        else:
            noise = torch.from_numpy(agent.distribution.noise(self._generator, self._count))
            actions = agent.distribution.sample(parameters, noise.to(parameters))
        return agent.for_environment(actions.cpu().numpy())

    @torch.inference_mode()
    def judge(self, rows: NDArray[Any], pixels: NDArray[Any] | None = None) -> NDArray[Any]:
        """Values `[count]`, of the environment's rewards, of what `act` takes. What is remembered stays as it is."""
        agent = self._agent
        seen = agent.normalize(torch.from_numpy(np.ascontiguousarray(rows)).to(agent.dtype))
        images = None if pixels is None else torch.from_numpy(np.ascontiguousarray(pixels)).to(agent.device)
        resets = torch.zeros(1, self._count, dtype=torch.bool, device=agent.device)
        _, values = agent.policy(seen, images, self.state, resets)
        return values.view(self._count, -1)[:, 0].cpu().numpy()  # type: ignore[no-any-return]

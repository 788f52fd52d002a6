"""The agent: policy, critic and running statistics, as one unit that is trained, published, saved and loaded."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.algorithm.acting import (
    ActingState,
    Actor,
    NumpyActor,
    TorchActor,
    after_discrete,
    bound_components,
    clip,
    normalize,
    squash,
)
from lockstep.algorithm.acting_step import ActingStep
from lockstep.algorithm.batch import RowLayout
from lockstep.algorithm.kernel_actor import KernelActor
from lockstep.algorithm.networks import Networks
from lockstep.algorithm.policy_kernels import PolicyKernels
from lockstep.compiling.graphs import cuda_graph
from lockstep.compiling.kernels import eager
from lockstep.compiling.row_kernels import RowKernels
from lockstep.curiosity.methods import make_curiosity
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.distributions.joint import joint_of
from lockstep.envs.spaces import Spaces
from lockstep.models.buffers import TrainedBuffers, persistent_buffers
from lockstep.models.distributions import make_distribution
from lockstep.models.flat import FlatParameters
from lockstep.models.normalization import RunningStatistics
from lockstep.models.numpy_policy import ArrayTransform, NumpyPolicy, identity
from lockstep.models.policy import Autocast, Policy
from lockstep.models.probe import probe_modules
from lockstep.models.registry import is_registered, registrable_names
from lockstep.models.settings import PolicyConfig
from lockstep.models.state import check_finite, check_state
from lockstep.processes.heartbeat import beat
from lockstep.randomness import seed_of
from lockstep.rollout import Rollout

__all__ = ["OBSERVATION_LIMIT", "Agent", "RolloutEvaluation"]

OBSERVATION_LIMIT = 10.0
_CPU = torch.device("cpu")
_IMAGES = 256
"""Images per forward pass."""


class RolloutEvaluation(NamedTuple):
    """Outputs of the networks for a whole rollout."""

    values: Tensor
    """`[T + 1, B]`."""
    log_probs: Tensor
    """`[T, B]`."""
    intrinsic_values: Tensor | None
    """`[T + 1, B]`, with two value heads."""


class Agent:
    """Policy, critic, and running statistics of observations and returns.

    Observations `[…, O]` and pixels `[…, P]` are those of the environments: the agent normalizes them. The networks are on `device`; all
    arguments and results, and saved states, are on the CPU unless documented otherwise.
    """

    def __init__(
        self,
        spaces: Spaces,
        config: PolicyConfig,
        normalize_rewards: bool,
        seed: int,
        dtype: torch.dtype,
        device: torch.device = _CPU,
        autocast: Autocast = nullcontext,
        curiosity: CuriosityConfig = CuriosityConfig(),  # noqa: B008
    ) -> None:
        """Initialize the weights from the random streams `weights` and `curiosity` of `seed`, equally on every device."""
        self.spaces = spaces
        self.device = device
        self.dtype = dtype
        self.squash = bool(config.squash)
        bounds = spaces.action_low, spaces.action_high
        self.continuous = make_distribution(*bounds, config) if spaces.continuous_size else None
        """Distribution of the continuous components of actions, if there are any."""
        self.distribution = joint_of(spaces.choices, self.continuous)
        generator = torch.Generator().manual_seed(seed_of(seed, "weights"))
        inputs = spaces.images, spaces.mask_size, curiosity.two_heads
        self.policy = Policy(spaces.observation_size, self.distribution, config, generator, dtype, autocast, *inputs)
        self.curiosity = make_curiosity(spaces, curiosity, self.squash, seed, dtype)
        """The source of intrinsic rewards, if there is one."""
        changed = []
        if device.type != "meta":  # nothing can be computed on that device
            changed = probe_modules(self.policy, config, spaces.feature_size, spaces.images, dtype)
        self.networks = Networks(self.policy, self.curiosity).to(device)
        self.flat = FlatParameters(self.networks.parameter_groups())
        self.buffers = persistent_buffers(self.networks)
        """The persistent buffers of a registered encoder, core or head, by name."""
        self.trained_buffers = TrainedBuffers(self.networks, [f"policy.{name}" for name in changed])
        self.observation_statistics = RunningStatistics(spaces.feature_size) if config.normalize_observations else None
        self.return_statistics = RunningStatistics(1) if normalize_rewards else None
        with autocast():
            native_precision = device.type == "cpu" and not torch.is_autocast_enabled("cpu")
        registered = {kind for kind, name in registrable_names(config) if is_registered(kind, name)}
        self._interpretable = native_precision and not registered & {"encoder", "head"}
        self._recordable = device.type == "cuda" and not registered and not changed
        self._step = ActingStep(
            self.policy, self.distribution, self.normalize, cuda_graph if self._recordable else eager
        )
        self.kernels: PolicyKernels | None = None
        """Kernels of the policy; None before `use_kernels`."""
        self._numpy_policy = (
            NumpyPolicy(self.policy, config.activation)
            if native_precision and self.policy.is_mlp and "head" not in registered and not self.distribution.features
            else None
        )
        self._numpy_dtype = torch.empty(0, dtype=dtype, device=_CPU).numpy().dtype
        if config.normalize_observations:
            self._shift, self._scale = torch.zeros(2, spaces.observation_size, device=device, dtype=dtype).unbind()
        self.refresh()

    @property
    def state_size(self) -> int:
        """Size of the state that the policy carries from step to step, S; 0 without memory."""
        return self.policy.state_size

    @property
    def layout(self) -> RowLayout:
        """Layout of the packed rows of minibatches."""
        curiosity = self.curiosity
        inputs, two_heads = (0, False) if curiosity is None else (curiosity.width, curiosity.config.two_heads)
        return RowLayout(self.spaces.observation_size, self.spaces.action_size, inputs, two_heads)

    @property
    def plain(self) -> bool:
        """True if rows are the only input of the networks: there are no images and no memory."""
        return self.policy.is_mlp and not self.state_size

    @property
    def supports_kernels(self) -> bool:
        """True if the gradient is a formula, whose kernels can be interpreted on a CPU or recorded on a GPU."""
        if self.device.type != "cuda":
            return self._interpretable and self.policy.has_built_in_cores
        # curiosity normalizes images by statistics that are not at a fixed address
        return self._recordable and not self.state_size and (self.plain or self.curiosity is None)

    def refresh(self) -> None:
        """Update the normalization after the running statistics have changed."""
        if self.observation_statistics is not None:
            shift, scale = self.observation_statistics.mean, self.observation_statistics.std.reciprocal()
            mask = shift.new_zeros(self.spaces.mask_size)  # the action mask is not normalized
            # in place: a recorded step of acting reads these tensors
            self._shift.copy_(torch.cat([shift, mask]))
            self._scale.copy_(torch.cat([scale, mask + 1]))
        if self.curiosity is not None:
            self.curiosity.refresh()

    def normalize(self, observations: Tensor) -> Tensor:
        """Normalize observations, and move them to the device of the networks."""
        observations = observations.to(self.device)
        if self.observation_statistics is None:
            return observations
        return ((observations - self._shift) * self._scale).clamp(-OBSERVATION_LIMIT, OBSERVATION_LIMIT)

    def use_kernels(self) -> None:
        """Act, evaluate observations, and compute curiosity rewards by interpreted kernels, if this agent `supports_kernels`."""
        if self.device.type == "cpu" and self.supports_kernels:
            kernels, bound = RowKernels(), self._bound if self.spaces.continuous_size else None
            pixel_count = self.spaces.pixel_count
            self.kernels = PolicyKernels(self.policy, self.distribution, self.normalize, bound, kernels, pixel_count)
            if self.curiosity is not None:
                self.curiosity.kernels = kernels

    def actor(self, noise: NDArray[Any], actions: NDArray[Any], memory: ActingState | None = None) -> Actor:
        """Create the actor of one rollout, with the current weights and statistics. Arguments as in `NumpyActor`."""
        if self.kernels is not None:
            return KernelActor(self.kernels, noise, actions, self.values, memory)
        count = noise.shape[1]
        bound_actions = self.action_transform(count)
        if self._numpy_policy is None:
            drawn = torch.from_numpy(noise).to(self.device, self.dtype)
            return TorchActor(self._step, self.distribution, bound_actions, drawn, actions, self.values, memory)
        transform: ArrayTransform = identity
        if self.observation_statistics is not None:
            transform = normalize(self._shift.numpy(), self._scale.numpy(), OBSERVATION_LIMIT, count)
        policy = self._numpy_policy
        return NumpyActor(policy, self.distribution, transform, bound_actions, noise, actions, self.values, memory)

    def action_transform(self, count: int) -> ArrayTransform:
        """Return a function that maps actions `[count]` or `[count, A]` into the bounds of the environment: by tanh if the policy squashes,
        else by clipping. Its next call may overwrite the result.
        """
        if not self.spaces.continuous_size:
            return identity
        low, high = (bound.astype(self._numpy_dtype) for bound in (self.spaces.action_low, self.spaces.action_high))
        transform = squash(low, high, count) if self.squash else clip(low, high, count)
        return after_discrete(len(self.spaces.choices), transform) if self.spaces.choices else transform

    @torch.inference_mode()
    def values(self, observations: Tensor, pixels: Tensor | None = None) -> Tensor:
        """Return values `[…]` of observations `[…, O]` and, with images, pixels `[…, P]`, for a policy without memory."""
        shape = observations.shape[:-1]
        if self.kernels is not None:
            images = None if pixels is None else pixels.flatten(0, -2)
            return self.kernels.value(observations.flatten(0, -2), images).view(shape)
        rows = self.normalize(observations).flatten(0, -2)
        if self._numpy_policy is not None:
            return self._numpy_policy.value(rows.numpy()).view(shape)
        if pixels is None or not self.spaces.images:
            return self.policy.value(rows).view(shape).cpu()
        blocks = _image_blocks(rows, pixels.flatten(0, -2))
        values = [self.policy.value(block, images.to(self.device)) for block, images in blocks]
        return torch.cat(values).view(shape).cpu()

    @torch.inference_mode()
    def evaluate(self, rollout: Rollout) -> RolloutEvaluation:
        """Compute values and log-probabilities of a whole rollout with the current weights."""
        steps, count = rollout.rewards.shape
        parameters, values = self._forward(rollout)
        actions = rollout.actions.flatten(0, 1).to(self.device)
        log_prob = self.distribution.log_prob if self.kernels is None else self.kernels.log_probs
        log_probs = log_prob(parameters[: steps * count], actions)
        values, intrinsic = values.view(steps + 1, count, -1).cpu(), None
        if self.layout.two_heads:
            intrinsic = values[..., 1].contiguous()
        return RolloutEvaluation(values[..., 0].contiguous(), log_probs.view(steps, count).cpu(), intrinsic)

    def _forward(self, rollout: Rollout) -> tuple[Tensor, Tensor]:
        """Compute parameters of the action distribution and values for all rows of a rollout, time first."""
        observations, state = rollout.observations, rollout.states[:1].flatten(0, 1)
        never = torch.zeros_like(rollout.valid[:1])
        resets = torch.cat([never, ~rollout.valid])
        if self.state_size:
            # a terminal observation may be NaN: its value is not used, but the memory would carry it on
            terminal = torch.cat([never, rollout.terminated]).unsqueeze(2)
            observations = torch.where(terminal, observations.nan_to_num(), observations)
        if self.kernels is not None:
            if self.state_size:
                return self.kernels.sequences(observations, rollout.pixels, state, resets, rollout.sequence_length)
            return self.kernels.forward(observations.flatten(0, 1), rollout.pixels.flatten(0, 1))
        rows, pixels = self.normalize(observations).flatten(0, 1), rollout.pixels.flatten(0, 1)
        if self.state_size:
            outputs: tuple[Tensor, Tensor] = self.policy(
                rows, *(tensor.to(self.device) for tensor in (pixels, state, resets))
            )
            return outputs
        if self._numpy_policy is not None and not self.layout.two_heads:
            return self._numpy_policy.forward(rows.numpy())
        blocks = [self.policy(block, images.to(self.device)) for block, images in _image_blocks(rows, pixels)]
        parameters, values = (torch.cat(parts) for parts in zip(*blocks, strict=True))
        return parameters, values

    def state(self) -> dict[str, Tensor]:
        """Parameters, persistent buffers and running statistics by name. On the CPU, except for an agent on the `meta` device."""
        device = self.device if self.device.type == "meta" else _CPU
        state = {name: parameter.detach().to(device) for name, parameter in self.networks.named_parameters()}
        state |= {name: buffer.to(device).contiguous() for name, buffer in self.buffers.items()}
        for name, statistics in self._statistics():
            state |= {f"{name}.{key}": value for key, value in statistics.state().items()}
        return state

    def check_finite(self, state: Mapping[str, Tensor]) -> None:
        """Raise NonFiniteState, naming the tensor, if weights or running statistics of a `state()` are not finite."""
        # a buffer of a registered module may hold infinities, for example a mask
        check_finite({name: tensor for name, tensor in state.items() if name not in self.buffers})

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore `state()`.

        Raises ValueError, naming the tensor, if one is missing, unexpected or of another shape, and NonFiniteState as `check_finite` does.
        """
        check_state(self.state(), state)
        self.check_finite(state)
        for name, parameter in self.networks.named_parameters():
            parameter.data.copy_(state[name])
        for name, buffer in self.buffers.items():
            buffer.copy_(state[name])
        for name, statistics in self._statistics():
            statistics.load({key: state[f"{name}.{key}"] for key in statistics.state()})
        self.refresh()

    def published(self) -> list[Tensor]:
        """Tensors that another agent needs to act and evaluate as this one does: weights, buffers and statistics, in fixed shapes."""
        statistics = [value for _, running in self._statistics() for value in running.state().values()]
        return [self.flat.buffer, *self.buffers.values(), *statistics]

    def load_published(self, published: Sequence[Tensor]) -> None:
        """Load the tensors that another agent `published()`."""
        weights, *rest = published
        self.flat.buffer.copy_(weights)
        for buffer, value in zip(self.buffers.values(), rest, strict=False):
            buffer.copy_(value)
        rest = rest[len(self.buffers) :]
        for _, statistics in self._statistics():
            names = list(statistics.state())
            statistics.load(dict(zip(names, rest, strict=False)))
            rest = rest[len(names) :]
        self.refresh()

    def digest(self) -> str:
        """Return the SHA-256 of weights, buffers and statistics in hexadecimal: equal for agents that are equal bit for bit."""
        digest = hashlib.sha256(self.flat.buffer.cpu().numpy().data)
        for buffer in self.buffers.values():
            digest.update(buffer.cpu().reshape(-1).view(torch.uint8).numpy().data)
        for _, statistics in self._statistics():
            for value in statistics.state().values():
                digest.update(value.numpy().data)
        return digest.hexdigest()

    def _bound(self, actions: Tensor) -> Tensor:
        """Map actions `[N, A]` into the bounds of the environment, as `action_transform` does."""
        choices, bounds = len(self.spaces.choices), (self.spaces.action_low, self.spaces.action_high)
        low, high = (torch.from_numpy(bound).to(self.dtype) for bound in bounds)
        bounded = bound_components(actions[:, choices:], low, high, self.squash)
        return torch.cat([actions[:, :choices], bounded], 1) if choices else bounded

    def _statistics(self) -> list[tuple[str, RunningStatistics]]:
        # checkpoints have these names
        named = [("observation_moments", self.observation_statistics), ("return_moments", self.return_statistics)]
        curiosity = {} if self.curiosity is None else self.curiosity.statistics
        named += [(f"curiosity_moments.{name}", statistics) for name, statistics in curiosity.items()]
        return [(name, statistics) for name, statistics in named if statistics is not None]


def _image_blocks(rows: Tensor, pixels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield blocks of rows and images, each with a heartbeat: all images of a rollout take long without a GPU."""
    for block, images in zip(rows.split(_IMAGES), pixels.split(_IMAGES), strict=True):
        beat()
        yield block, images

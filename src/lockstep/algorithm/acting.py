"""Selecting actions step by step during one rollout, and computing their log-probabilities."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.algorithm.acting_step import ActingStep, StepOutputs
from lockstep.distributions.joint import Distribution
from lockstep.models.numpy_policy import ArrayTransform, Head, NumpyPolicy, Step, without_warnings

__all__ = [
    "ActingState",
    "Actor",
    "NumpyActor",
    "TorchActor",
    "after_discrete",
    "bound_components",
    "clip",
    "normalize",
    "squash",
]


@dataclass
class ActingState:
    """State of a policy with memory during one rollout."""

    state: Tensor
    """`[B, S]` before the next step; the actor updates it."""
    states: Tensor
    """`[T / L, B, S]`: copies of `state`, stored every L steps."""
    ended: NDArray[np.bool_]
    """`[B]`: the first row is a reset row."""
    terminated: NDArray[np.bool_]
    """`[T, B]`, filled step by step."""
    truncated: NDArray[np.bool_]

    def reset_ended(self, t: int) -> None:
        """Zero the states of episodes that have ended; to be called after step t, which is their reset row."""
        ended = self.ended if t == 0 else self.terminated[t - 1] | self.truncated[t - 1]
        if ended.any():
            self.state[torch.from_numpy(ended)] = 0

    def store(self, t: int, steps: int) -> None:
        """Store the state if a sequence begins; to be called before step t of `steps`."""
        sequence, within = divmod(t, steps // len(self.states))
        if within == 0:
            self.states[sequence] = self.state


class Actor(Protocol):
    """Selects the actions of one rollout."""

    @property
    def act(self) -> Callable[..., NDArray[Any]]:
        """Function of a step t, observations `[B, O]` and, with images, pixels `[B, P]` that returns actions for the environments, in an
        array that the next call may overwrite.
        """

    def log_probs(self) -> Tensor:
        """Return the log-probabilities `[T, B]` of all actions, after the last step. Rows of steps that were not taken have no meaning."""

    def values(self, observations: Tensor, pixels: Tensor) -> Tensor:
        """Return the values `[T + 1, B]` of observations `[T + 1, B, O]` and pixels `[T + 1, B, P]`, after the last step.

        If fewer steps were taken, the last observation is that after the last of these steps; rows between have no meaning.
        """


class NumpyActor:
    """Actor for policies without images, on the CPU in the precision of the weights, with the weights of its creation."""

    def __init__(
        self,
        policy: NumpyPolicy,
        distribution: Distribution,
        normalize: ArrayTransform,
        bound_actions: ArrayTransform,
        noise: NDArray[Any],
        actions: NDArray[Any],
        value: Callable[[Tensor], Tensor],
        memory: ActingState | None,
    ) -> None:
        """Create the actor of one rollout of `policy` with action `distribution`.

        `normalize` normalizes observations `[B, O]`; `bound_actions` maps actions as a rollout stores them, `[B]` or `[B, A]`, into the bounds of the
        environments. `noise` is `[T, B, …]`, as the distribution needs it; `actions`, `[T, B]` or `[T, B, A]`, is filled. A policy has either a
        `memory` or `value`, which returns values `[…]` of observations `[…, O]`.
        """
        self._policy, self._distribution, self._actions, self._value = policy, distribution, actions, value
        steps, count = noise.shape[:2]
        heads = policy.heads(steps + 1, count)
        if memory is None:
            forward = self._forward(policy.head(count, normalize), heads)
        else:
            forward = self._recurrent(policy.step(count, normalize), memory, heads)
        log_std = None if policy.log_std is None else policy.log_std.numpy()
        sample = without_warnings(distribution.sampler)(noise.astype(heads.dtype), log_std)
        self._heads = heads[:steps]

        def act(t: int, observations: NDArray[Any], pixels: NDArray[Any] | None = None) -> NDArray[Any]:
            return bound_actions(sample(t, forward(t, observations), actions[t]))

        self.act: Callable[..., NDArray[Any]] = without_warnings(act)
        """See `Actor.act`."""

    @staticmethod
    def _forward(head: Head, heads: NDArray[Any]) -> Callable[[int, NDArray[Any]], NDArray[Any]]:
        return lambda t, observations: head(observations, heads[t])

    def _recurrent(
        self, step: Step, memory: ActingState, heads: NDArray[Any]
    ) -> Callable[[int, NDArray[Any]], NDArray[Any]]:
        """Return a forward pass that updates the memory and keeps the latents, from which values are computed at the end."""
        rows, count = heads.shape[:2]
        state, latents = memory.state.numpy(), self._policy.latents(rows, count)

        def forward(t: int, observations: NDArray[Any]) -> NDArray[Any]:
            memory.store(t, rows - 1)
            step(observations, state, heads[t], latents[t])
            memory.reset_ended(t)
            head: NDArray[Any] = heads[t]
            return head

        def value(observations: Tensor) -> Tensor:
            # a copy of the state: the next rollout starts with the same observations
            step(observations[-1].numpy(), state.copy(), heads[-1], latents[-1])
            return self._policy.values_of_latents(latents)

        self._value = without_warnings(value)
        return forward

    def log_probs(self) -> Tensor:
        """See `Actor.log_probs`."""
        parameters = self._policy.parameters(self._heads.reshape(-1, self._heads.shape[-1]))
        actions = torch.from_numpy(self._actions).flatten(0, 1)
        return self._distribution.log_prob(parameters, actions).view(self._actions.shape[:2])

    def values(self, observations: Tensor, pixels: Tensor) -> Tensor:
        """See `Actor.values`."""
        return self._value(observations)


class TorchActor:
    """Actor for any policy, on any device in any precision, computed by PyTorch."""

    def __init__(
        self,
        step: ActingStep,
        distribution: Distribution,
        bound_actions: ArrayTransform,
        noise: Tensor,
        actions: NDArray[Any],
        value: Callable[[Tensor, Tensor], Tensor],
        memory: ActingState | None,
    ) -> None:
        """Create the actor as `NumpyActor` does. `step` computes each step; noise is on the networks' device."""
        self._step, self._distribution, self._bound_actions = step, distribution, bound_actions
        self._noise, self._actions, self._value, self._memory = noise, torch.from_numpy(actions), value, memory
        self._parameters: list[Tensor] = []
        self._values: list[Tensor] = []

    @torch.inference_mode()
    def act(self, t: int, observations: NDArray[Any], pixels: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `Actor.act`. With images, `pixels` is `[B, P]`."""
        if self._memory is not None:
            self._memory.store(t, len(self._noise))
        images = None if pixels is None else torch.from_numpy(pixels)
        outputs = self._forward(t, torch.from_numpy(observations), images)
        if self._memory is not None:
            self._memory.reset_ended(t)
        self._parameters.append(outputs.parameters)
        self._actions[t] = outputs.actions
        return self._bound_actions(self._actions[t].numpy())

    def _forward(self, t: int, observations: Tensor, pixels: Tensor | None) -> StepOutputs:
        """Compute a step with the noise of step t; update the memory, and keep the values if the policy computes them along."""
        memory = self._memory
        outputs = self._step(self._noise[t], observations, pixels, None if memory is None else memory.state)
        if outputs.values is not None:
            self._values.append(outputs.values)
        if memory is not None and outputs.state is not None:
            memory.state = outputs.state
        return outputs

    @torch.inference_mode()
    def log_probs(self) -> Tensor:
        """See `Actor.log_probs`. Only the rows of steps that were taken."""
        parameters = torch.cat(self._parameters)
        taken = self._actions[: len(self._parameters)]
        actions = taken.flatten(0, 1).to(parameters.device)
        return self._distribution.log_prob(parameters, actions).view(taken.shape[:2]).cpu()

    @torch.inference_mode()
    def values(self, observations: Tensor, pixels: Tensor) -> Tensor:
        """See `Actor.values`. Only the rows of steps that were taken, and the last one."""
        if not self._values:
            return self._value(observations, pixels)
        if len(self._values) < len(observations):  # the last observations, with which the next rollout starts again
            before = None if self._memory is None else self._memory.state
            self._forward(0, observations[-1], pixels[-1])
            if self._memory is not None and before is not None:
                self._memory.state = before
        return torch.stack(self._values).cpu()


def normalize(shift: NDArray[Any], scale: NDArray[Any], limit: float, count: int) -> ArrayTransform:
    """Return a transform that shifts and scales arrays `[count, O]`, and clips them to ±`limit`."""
    # full arrays: broadcasting a row or a number costs more than the arithmetic
    shift, scale = np.tile(shift, (count, 1)), np.tile(scale, (count, 1))
    result = torch.from_numpy(shift).clone().numpy()  # aligned by PyTorch, like all inputs of matrix products
    low, high = np.full_like(shift, -limit), np.full_like(shift, limit)

    def transform(rows: NDArray[Any]) -> NDArray[Any]:
        np.subtract(rows, shift, out=result)
        np.multiply(result, scale, out=result)
        np.maximum(result, low, out=result)
        np.minimum(result, high, out=result)
        return result

    return transform


def clip(low: NDArray[Any], high: NDArray[Any], count: int) -> ArrayTransform:
    """Return a transform that clips arrays `[count, A]` to the bounds."""
    low, high = np.tile(low, (count, 1)), np.tile(high, (count, 1))
    clipped = np.empty_like(low)

    def transform(actions: NDArray[Any]) -> NDArray[Any]:
        np.maximum(actions, low, out=clipped)
        np.minimum(clipped, high, out=clipped)
        return clipped

    return transform


def after_discrete(choices: int, transform: ArrayTransform) -> ArrayTransform:
    """Return `transform` applied to the continuous components of `[count, A]`, which follow the discrete ones."""

    def transform_continuous(actions: NDArray[Any]) -> NDArray[Any]:
        result = actions.copy()
        result[:, choices:] = transform(np.ascontiguousarray(actions[:, choices:]))
        return result

    return transform_continuous


def squash(low: NDArray[Any], high: NDArray[Any], count: int) -> ArrayTransform:
    """Return a transform that maps arrays `[count, A]` into the bounds by tanh."""
    half_range, clip_to_bounds = 0.5 * (high - low), clip(low, high, count)

    def transform(actions: NDArray[Any]) -> NDArray[Any]:
        result = np.tanh(actions)
        result += 1
        result *= half_range
        result += low
        return clip_to_bounds(result)  # rounding may exceed the bounds

    return transform


def bound_components(components: Tensor, low: Tensor, high: Tensor, squashes: bool) -> Tensor:
    """Map continuous components `[N, A]` of actions into the bounds: by tanh if the policy squashes, else by clipping."""
    if squashes:
        components = (components.tanh() + 1) * (0.5 * (high - low)) + low
    return torch.minimum(torch.maximum(components, low), high)  # rounding may exceed the bounds

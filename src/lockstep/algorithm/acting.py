"""From observations to actions, step by step of one rollout, and the log-probabilities of what was done."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.models.numpy_policy import NumpyPolicy, silent
from lockstep.models.policy import Policy
from lockstep.ppo.distributions import Distribution

__all__ = [
    "ActionTransform",
    "Actor",
    "Memory",
    "NumpyActor",
    "TorchActor",
    "after_discrete",
    "clip",
    "normalize",
    "squash",
    "unchanged",
]

ActionTransform = Callable[[NDArray[Any]], NDArray[Any]]
"""What is done to an array of one shape. Its next call may overwrite what it gave."""


@dataclass
class Memory:
    """What a policy with memory carries from one step to the next, in one rollout."""

    state: Tensor
    """`[B, S]` before the next step; the actor moves it on."""
    states: Tensor
    """`[T / L, B, S]`: where it is noted every L steps."""
    ended: NDArray[np.bool_]
    """`[B]`: the first row is a reset row."""
    terminated: NDArray[np.bool_]
    """`[T, B]`, as far as they are known."""
    truncated: NDArray[np.bool_]

    def forget(self, t: int) -> None:
        """After step t: what is remembered of episodes that are over."""
        over = self.ended if t == 0 else self.terminated[t - 1] | self.truncated[t - 1]
        if over.any():
            self.state[torch.from_numpy(over)] = 0

    def note(self, t: int, steps: int) -> None:
        """Before step t of `steps`."""
        sequence, within = divmod(t, steps // len(self.states))
        if within == 0:
            self.states[sequence] = self.state


class NumpyActor:
    """For policies without images: on the CPU, in the weights' own precision, with the weights and moments of its making."""

    def __init__(
        self,
        inference: NumpyPolicy,
        distribution: Distribution,
        see: ActionTransform,
        fit: ActionTransform,
        noise: NDArray[Any],
        taken: NDArray[Any],
        value: Callable[[Tensor], Tensor],
        memory: Memory | None,
    ) -> None:
        """Arguments.

        Args:
            inference: The networks.
            distribution: Of the actions.
            see: Makes of observations `[B, O]` what the networks see.
            fit: Makes of actions `[B]` or `[B, A]`, as a rollout stores them, what the environments take.
            noise: `[T, B, …]` of the distribution's kind.
            taken: `[T, B]` or `[T, B, A]`: where actions are written as a rollout stores them.
            value: Values `[…]` of observations `[…, O]`, for a policy without memory.
            memory: For one that has one.
        """
        self._inference, self._distribution, self._taken, self._value = inference, distribution, taken, value
        steps, count = noise.shape[:2]
        heads, draw = inference.heads(steps + 1, count), distribution.draw
        look = self._plain(see, heads) if memory is None else self._remembering(memory, see, heads)
        log_std = None if inference.log_std is None else inference.log_std.numpy()
        spread = silent(distribution.spread)(noise.astype(heads.dtype), log_std)
        self._heads = heads[:steps]

        def act(t: int, observations: NDArray[Any], pixels: NDArray[Any] | None = None) -> NDArray[Any]:
            return fit(draw(look(t, observations), spread[t], taken[t]))

        self.act: Callable[..., NDArray[Any]] = silent(act)
        """Step t and observations `[B, O]` -> actions as environments take them, in an array that the next call may overwrite."""

    def _plain(self, see: ActionTransform, heads: NDArray[Any]) -> Callable[[int, NDArray[Any]], NDArray[Any]]:
        head = self._inference.head(heads.shape[1])
        return lambda t, observations: head(see(observations), heads[t])

    def _remembering(
        self, memory: Memory, see: ActionTransform, heads: NDArray[Any]
    ) -> Callable[[int, NDArray[Any]], NDArray[Any]]:
        """Moves the memory on; what the critic needs is noted."""
        rows, count = heads.shape[:2]
        move, state, latents = self._inference.step(count), memory.state.numpy(), self._inference.latents(rows, count)

        def look(t: int, observations: NDArray[Any]) -> NDArray[Any]:
            memory.note(t, rows - 1)
            move(see(observations), state, heads[t], latents[t])
            memory.forget(t)
            head: NDArray[Any] = heads[t]
            return head

        def value(observations: Tensor) -> Tensor:
            # what the next rollout begins with is looked at, but not remembered
            move(see(observations[-1].numpy()), state.copy(), heads[-1], latents[-1])
            return self._inference.judge(latents)

        self._value = silent(value)
        return look

    def log_probs(self) -> Tensor:
        """`[T, B]`, once all steps were taken."""
        parameters = self._inference.parameters(self._heads.reshape(-1, self._heads.shape[-1]))
        actions = torch.from_numpy(self._taken).flatten(0, 1)
        return self._distribution.log_prob(parameters, actions).view(self._taken.shape[:2])

    def values(self, observations: Tensor, pixels: Tensor) -> Tensor:
        """`[T + 1, B]`, once all steps were taken, of `[T + 1, B, O]` and `[T + 1, B, P]`."""
        return self._value(observations)


class TorchActor:
    """By PyTorch: any policy on any device in any precision."""

    def __init__(
        self,
        policy: Policy,
        distribution: Distribution,
        see: Callable[[Tensor], Tensor],
        fit: ActionTransform,
        noise: Tensor,
        taken: NDArray[Any],
        value: Callable[[Tensor, Tensor], Tensor],
        memory: Memory | None,
    ) -> None:
        """Arguments as `NumpyActor`'s; what `see` gives is on the networks' device, and so is the noise. `memory` is for a policy that
        has one.
        """
        self._policy, self._distribution, self._see, self._fit = policy, distribution, see, fit
        self._noise, self._taken, self._value, self._memory = noise, torch.from_numpy(taken), value, memory
        self._parameters: list[Tensor] = []
        self._values: list[Tensor] = []

    @torch.inference_mode()
    def act(self, t: int, observations: NDArray[Any], pixels: NDArray[Any] | None = None) -> NDArray[Any]:
        """See `NumpyActor.act`. With images, `pixels` are `[B, P]`."""
        if self._memory is not None:
            self._memory.note(t, len(self._noise))
        images = None if pixels is None else torch.from_numpy(pixels)
        parameters = self._look(torch.from_numpy(observations), images)
        if self._memory is not None:
            self._memory.forget(t)
        self._parameters.append(parameters)
        self._taken[t] = self._distribution.sample(parameters, self._noise[t])
        return self._fit(self._taken[t].numpy())

    def _look(self, observations: Tensor, pixels: Tensor | None) -> Tensor:
        """Parameters; moves the memory on and, where values come along, notes them."""
        rows, memory = self._see(observations), self._memory
        images = None if pixels is None else pixels.to(rows.device)
        parameters, values, state = self._policy.act(rows, images, None if memory is None else memory.state)
        if values is not None:
            self._values.append(values)
        if memory is not None and state is not None:
            memory.state = state
        return parameters

    @torch.inference_mode()
    def log_probs(self) -> Tensor:
        """See `NumpyActor.log_probs`."""
        parameters = torch.cat(self._parameters)
        actions = self._taken.flatten(0, 1).to(parameters.device)
        return self._distribution.log_prob(parameters, actions).view(self._taken.shape[:2]).cpu()

    @torch.inference_mode()
    def values(self, observations: Tensor, pixels: Tensor) -> Tensor:
        """See `NumpyActor.values`."""
        if not self._values:
            return self._value(observations, pixels)
        if len(self._values) < len(observations):  # what the next rollout begins with: looked at, but not remembered
            before = None if self._memory is None else self._memory.state
            self._look(observations[-1], pixels[-1])
            if self._memory is not None and before is not None:
                self._memory.state = before
        return torch.stack(self._values).cpu()


Actor = NumpyActor | TorchActor


def unchanged(rows: NDArray[Any]) -> NDArray[Any]:
    """Nothing, for any shape."""
    return rows


def normalize(shift: NDArray[Any], scale: NDArray[Any], limit: float, count: int) -> ActionTransform:
    """Shifts, scales and cuts off at ±`limit`, for `[count, O]`."""
    # whole arrays of one shape: to repeat a row or a number costs more than the arithmetic
    shift, scale = np.tile(shift, (count, 1)), np.tile(scale, (count, 1))
    seen = torch.from_numpy(shift).clone().numpy()  # aligned, as all that is multiplied by weights
    low, high = np.full_like(shift, -limit), np.full_like(shift, limit)

    def change(rows: NDArray[Any]) -> NDArray[Any]:
        np.subtract(rows, shift, out=seen)
        np.multiply(seen, scale, out=seen)
        np.maximum(seen, low, out=seen)
        np.minimum(seen, high, out=seen)
        return seen

    return change


def clip(low: NDArray[Any], high: NDArray[Any], count: int) -> ActionTransform:
    """Brings `[count, A]` within the bounds."""
    low, high = np.tile(low, (count, 1)), np.tile(high, (count, 1))
    fitting = np.empty_like(low)

    def change(actions: NDArray[Any]) -> NDArray[Any]:
        np.maximum(actions, low, out=fitting)
        np.minimum(fitting, high, out=fitting)
        return fitting

    return change


def after_discrete(choices: int, change: ActionTransform) -> ActionTransform:
    """`change` for the continuous components of `[count, A]`, behind the choices."""

    def whole(actions: NDArray[Any]) -> NDArray[Any]:
        changed = actions.copy()
        changed[:, choices:] = change(np.ascontiguousarray(actions[:, choices:]))
        return changed

    return whole


def squash(low: NDArray[Any], high: NDArray[Any], count: int) -> ActionTransform:
    """Maps `[count, A]` onto the bounds by tanh."""
    half, cut = 0.5 * (high - low), clip(low, high, count)

    def change(actions: NDArray[Any]) -> NDArray[Any]:
        fitting = np.tanh(actions)
        fitting += 1
        fitting *= half
        fitting += low
        return cut(fitting)  # all the same: rounding may carry it past the bound

    return change

"""From observations to actions, step by step of one rollout, and the log-probabilities of what was done."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.models.inference import Inference, silent
from lockstep.models.policy import Policy
from lockstep.ppo.distributions import Categorical, Gaussian

__all__ = ["Actor", "Change", "NumpyActor", "TorchActor", "clip", "normalize", "squash", "unchanged"]

Change = Callable[[NDArray[Any]], NDArray[Any]]
"""What is done to an array of one shape. Its next call may overwrite what it gave."""


class NumpyActor:
    """On the CPU, in the weights' own precision, with the weights and moments of its making."""

    def __init__(
        self,
        inference: Inference,
        distribution: Categorical | Gaussian,
        see: Change,
        fit: Change,
        noise: NDArray[Any],
        taken: NDArray[Any],
    ) -> None:
        """Arguments.

        Args:
            inference: The networks.
            distribution: Of the actions.
            see: Makes of observations `[B, O]` what the networks see.
            fit: Makes of actions `[B]` or `[B, A]`, as a rollout stores them, what the environments take.
            noise: `[T, B, …]` of the distribution's kind.
            taken: `[T, B]` or `[T, B, A]`: where actions are written as a rollout stores them.
        """
        self._inference, self._distribution, self._taken = inference, distribution, taken
        steps, count = noise.shape[:2]
        head, heads, draw = inference.head(count), inference.heads(steps, count), distribution.draw
        log_std = None if inference.log_std is None else inference.log_std.numpy()
        spread = silent(distribution.spread)(noise.astype(heads.dtype), log_std)
        self._heads = heads

        def act(t: int, observations: NDArray[Any]) -> NDArray[Any]:
            return fit(draw(head(see(observations), heads[t]), spread[t], taken[t]))

        self.act: Callable[[int, NDArray[Any]], NDArray[Any]] = silent(act)
        """Step t and observations `[B, O]` -> actions as environments take them, in an array that the next call may overwrite."""

    def log_probs(self) -> Tensor:
        """`[T, B]`, once all steps were taken."""
        parameters = self._inference.parameters(self._heads.reshape(-1, self._heads.shape[-1]))
        actions = torch.from_numpy(self._taken).flatten(0, 1)
        return self._distribution.log_prob(parameters, actions).view(self._taken.shape[:2])


class TorchActor:
    """The same by PyTorch, on any device and in any precision."""

    def __init__(
        self,
        policy: Policy,
        distribution: Categorical | Gaussian,
        see: Callable[[Tensor], Tensor],
        fit: Change,
        noise: Tensor,
        taken: NDArray[Any],
    ) -> None:
        """Arguments as `NumpyActor`'s; what `see` gives is on the networks' device, and so is the noise."""
        self._policy, self._distribution, self._see, self._fit = policy, distribution, see, fit
        self._noise, self._taken = noise, torch.from_numpy(taken)
        self._parameters: list[Tensor] = []

    @torch.inference_mode()
    def act(self, t: int, observations: NDArray[Any]) -> NDArray[Any]:
        """See `NumpyActor.act`."""
        parameters = self._policy.act(self._see(torch.from_numpy(observations)))
        self._parameters.append(parameters)
        self._taken[t] = self._distribution.sample(parameters, self._noise[t])
        return self._fit(self._taken[t].numpy())

    @torch.inference_mode()
    def log_probs(self) -> Tensor:
        """See `NumpyActor.log_probs`."""
        parameters = torch.cat(self._parameters)
        actions = self._taken.flatten(0, 1).to(parameters.device)
        return self._distribution.log_prob(parameters, actions).view(self._taken.shape[:2]).cpu()


Actor = NumpyActor | TorchActor


def unchanged(rows: NDArray[Any]) -> NDArray[Any]:
    """Nothing, for any shape."""
    return rows


def normalize(shift: NDArray[Any], scale: NDArray[Any], limit: float, count: int) -> Change:
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


def clip(low: NDArray[Any], high: NDArray[Any], count: int) -> Change:
    """Brings `[count, A]` within the bounds."""
    low, high = np.tile(low, (count, 1)), np.tile(high, (count, 1))
    fitting = np.empty_like(low)

    def change(actions: NDArray[Any]) -> NDArray[Any]:
        np.maximum(actions, low, out=fitting)
        np.minimum(fitting, high, out=fitting)
        return fitting

    return change


def squash(low: NDArray[Any], high: NDArray[Any], count: int) -> Change:
    """Maps `[count, A]` onto the bounds by tanh."""
    half, cut = 0.5 * (high - low), clip(low, high, count)

    def change(actions: NDArray[Any]) -> NDArray[Any]:
        fitting = np.tanh(actions)
        fitting += 1
        fitting *= half
        fitting += low
        return cut(fitting)  # all the same: rounding may carry it past the bound

    return change

"""Selecting actions by kernels: each step is one call, which normalizes, computes the networks, samples and bounds actions."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.algorithm.acting import ActingState
from lockstep.algorithm.policy_kernels import PolicyKernels

__all__ = ["KernelActor"]


class KernelActor:
    """Actor for policies with `PolicyKernels`, with the weights of its creation."""

    def __init__(
        self,
        kernels: PolicyKernels,
        noise: NDArray[Any],
        actions: NDArray[Any],
        value: Callable[[Tensor, Tensor], Tensor],
        memory: ActingState | None,
    ) -> None:
        """Create the actor as `NumpyActor` does."""
        steps, count = noise.shape[:2]
        self._step = step = kernels.step(count, noise.shape[2])
        self._kernels, self._actions, self._value = kernels, actions, value
        self._heads = np.zeros((steps, *step.head.shape), step.head.dtype)
        self._state = None if memory is None else memory.state.numpy()
        self._latents = None if step.latent is None else np.zeros((steps + 1, *step.latent.shape), step.head.dtype)
        forward = self._function(noise.astype(step.noise.dtype))
        self.act: Callable[..., NDArray[Any]] = forward if memory is None else _with_memory(forward, memory, steps)
        """See `Actor.act`."""

    def _function(self, noise: NDArray[Any]) -> Callable[..., NDArray[Any]]:
        run, observations, images, step_noise, state_before, head, actions, bounded, latent, next_state = self._step
        all_heads, all_actions, state, latents = self._heads, self._actions, self._state, self._latents
        has_bounds = bounded is not actions

        def act(t: int, rows: NDArray[Any], pixels: NDArray[Any] | None = None) -> NDArray[Any]:
            observations[:], step_noise[:] = rows, noise[t]
            if images is not None:
                images[:] = pixels
            if state_before is not None:
                state_before[:] = state
            run()
            all_heads[t], all_actions[t] = head, actions
            if state is not None:
                state[:] = next_state
            if latents is not None:
                latents[t] = latent
            # choices are integers in the array of all actions, and numbers in that of the step
            return bounded if has_bounds else all_actions[t]

        return act

    def log_probs(self) -> Tensor:
        """See `Actor.log_probs`."""
        heads, actions = torch.from_numpy(self._heads), torch.from_numpy(self._actions)
        log_probs = self._kernels.log_probs_of_heads(heads.flatten(0, 1), actions.flatten(0, 1))
        return log_probs.view(actions.shape[:2])

    def values(self, observations: Tensor, pixels: Tensor) -> Tensor:
        """See `Actor.values`."""
        step, state, latents = self._step, self._state, self._latents
        if latents is None:
            return self._value(observations, pixels)
        step.observations[:] = observations[-1].numpy()
        if step.state is not None:
            step.state[:] = state  # stays as it is: the next rollout starts with the same observations
        if step.pixels is not None:
            step.pixels[:] = pixels[-1].numpy()
        step.run()
        latents[-1] = step.latent
        return self._kernels.value_of_latents(torch.from_numpy(latents).flatten(0, 1)).view(latents.shape[:2])


def _with_memory(act: Callable[..., NDArray[Any]], memory: ActingState, steps: int) -> Callable[..., NDArray[Any]]:
    """Return `act` with the bookkeeping of a policy with memory."""

    def remember(t: int, rows: NDArray[Any], pixels: NDArray[Any] | None = None) -> NDArray[Any]:
        memory.store(t, steps)
        actions = act(t, rows, pixels)
        memory.reset_ended(t)
        return actions

    return remember

"""One step of acting, computed by PyTorch: normalization, forward pass and sampling."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.compiling.kernels import Kernel, MakeKernel, eager
from lockstep.distributions.joint import Distribution
from lockstep.models.policy import Policy

__all__ = ["ActingStep", "StepOutputs"]


class StepOutputs(NamedTuple):
    """Results of one step for B environments, on the device of the networks."""

    actions: Tensor
    """`[B]` or `[B, A]`."""
    parameters: Tensor
    """`[B, D]`, of the action distribution."""
    values: Tensor | None
    """`[B]`; None if the critic is evaluated separately, after the rollout."""
    state: Tensor | None
    """`[B, S]` after the step; None without memory."""


class ActingStep:
    """Function that computes one step of acting, with the current weights and statistics."""

    def __init__(
        self,
        policy: Policy,
        distribution: Distribution,
        normalize: Callable[[Tensor], Tensor],
        make_kernel: MakeKernel = eager,
    ) -> None:
        """Create the function. `normalize` normalizes observations and moves them to the device of the networks."""
        self._policy, self._distribution, self._normalize = policy, distribution, normalize
        self._make_kernel = make_kernel
        self._kernels: dict[tuple[torch.Size, ...], Kernel] = {}

    def __call__(self, noise: Tensor, observations: Tensor, pixels: Tensor | None, state: Tensor | None) -> StepOutputs:
        """Compute a step from noise `[B, …]`, as the distribution needs it, observations `[B, O]`, pixels `[B, P]` and states `[B, S]`."""
        inputs = [tensor for tensor in (noise, observations, pixels, state) if tensor is not None]
        shapes = tuple(tensor.shape for tensor in inputs)
        if shapes not in self._kernels:
            formula = _ActingFormula(self, pixels is not None, state is not None)
            self._kernels[shapes] = self._make_kernel(formula, inputs)
        actions, parameters, *others = self._kernels[shapes](*inputs)
        # a policy with memory always computes values along
        values, state = [*others, None, None][:2]
        return StepOutputs(actions, parameters, values, state)

    def evaluate(self, noise: Tensor, observations: Tensor, pixels: Tensor | None, state: Tensor | None) -> StepOutputs:
        """Compute a step operation by operation."""
        rows = self._normalize(observations)
        images = None if pixels is None else pixels.to(rows.device)
        parameters, values, state = self._policy.act(rows, images, state)
        return StepOutputs(self._distribution.sample(parameters, noise), parameters, values, state)


@dataclass(frozen=True)
class _ActingFormula:
    """`ActingStep.evaluate` as a formula: its arguments and results are tensors, without None."""

    step: ActingStep
    has_pixels: bool
    has_state: bool

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Evaluate the formula."""
        noise, observations, *others = tensors
        pixels, state = others[0] if self.has_pixels else None, others[-1] if self.has_state else None
        outputs = self.step.evaluate(noise, observations, pixels, state)
        return tuple(output for output in outputs if output is not None)

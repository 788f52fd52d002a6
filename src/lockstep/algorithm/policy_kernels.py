"""Policies as interpreted kernels: each step of acting, and each evaluation of many observations, is one call."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.compiling.kernels import InterpretedKernel
from lockstep.compiling.row_kernels import RowKernels
from lockstep.distributions.joint import Distribution
from lockstep.models.policy import Policy

__all__ = ["BoundStep", "PolicyKernels"]


class BoundStep(NamedTuple):
    """A step of acting for B environments: `run` reads the first arrays, and overwrites the others."""

    run: Callable[[], None]
    observations: NDArray[Any]
    """`[B, O]`."""
    noise: NDArray[Any]
    """`[B, K]`, as the distribution needs it."""
    state: NDArray[Any] | None
    """`[B, S]` before the step; None without memory."""
    head: NDArray[Any]
    """`[B, H]`, the output of the policy's head."""
    actions: NDArray[Any]
    """`[B]` or `[B, A]`."""
    bounded: NDArray[Any]
    """Actions for the environments."""
    latent: NDArray[Any] | None
    """`[B, …]`, the output of the critic's core; None without memory."""
    next_state: NDArray[Any] | None
    """`[B, S]`; None without memory."""


class PolicyKernels:
    """Kernels of a policy without images, on the CPU in the precision of its weights.

    They read weights and running statistics in place, so that they follow training and loading. Their results equal those of the
    `Policy` up to rounding, and have the same bits on every processor. Each kernel is made when it is first used.
    """

    def __init__(
        self,
        policy: Policy,
        distribution: Distribution,
        normalize: Callable[[Tensor], Tensor],
        bound: Callable[[Tensor], Tensor] | None,
        kernels: RowKernels,
    ) -> None:
        """Create those of `policy` with action `distribution`, and keep them in `kernels`.

        `normalize` normalizes observations `[N, O]`. `bound` maps actions `[N, A]` into the bounds of the environments; None: there are none.
        """
        self._policy, self._distribution, self._kernels = policy, distribution, kernels
        self._normalize, self._bound = normalize, bound
        self._dtype = policy.policy_head.weight.dtype
        self._steps: dict[tuple[int, int], tuple[InterpretedKernel, BoundStep]] = {}

    def step(self, count: int, noise_size: int) -> BoundStep:
        """Return the step for `count` observations, with the current weights. `noise_size` is K."""
        key = count, noise_size
        if key not in self._steps:
            self._steps[key] = self._make_step(count, noise_size)
        kernel, step = self._steps[key]
        kernel.prepare()
        return step

    def _make_step(self, count: int, noise_size: int) -> tuple[InterpretedKernel, BoundStep]:
        policy = self._policy
        sizes = (policy.observation_size, noise_size, *([policy.state_size] if policy.state_size else []))
        arguments = [torch.zeros(count, size, dtype=self._dtype) for size in sizes]
        with torch.no_grad():
            kernel = self._kernels.make(self._step_formula, arguments, prepares=True)
        run, results = kernel.bind(*arguments)
        observations, noise, *state = (tensor.numpy() for tensor in arguments)
        arrays = [tensor.numpy() for tensor in results]
        head, actions, *rest = arrays[: 2 if self._bound is None else 3]
        latent, after = arrays[-2:] if state else (None, None)
        state_before = state[0] if state else None
        return kernel, BoundStep(
            run, observations, noise, state_before, head, actions, rest[0] if rest else actions, latent, after
        )

    def _step_formula(self, observations: Tensor, noise: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        rows = self._normalize(observations)
        head, *memory = self._policy.unrolled_step(rows, *state) if state else (self._policy.head(rows),)
        actions = self._distribution.sample(self._policy.distribution_parameters(head), noise)
        return head, actions, *([] if self._bound is None else [self._bound(actions)]), *memory

    def log_probs(self, parameters: Tensor, actions: Tensor) -> Tensor:
        """Compute the log-probabilities `[N]` of actions `[N]` or `[N, A]` for parameters `[N, D]` of the distribution."""

        def formula(parameters: Tensor, actions: Tensor) -> tuple[Tensor]:
            return (self._distribution.log_prob(parameters, actions.to(dtype)),)

        dtype = actions.dtype
        (log_probs,) = self._kernels.compute("log_probs", formula, parameters, actions.to(self._dtype))
        return log_probs

    def log_probs_of_heads(self, heads: Tensor, actions: Tensor) -> Tensor:
        """Compute the log-probabilities `[N]` of actions for outputs `[N, H]` of the policy's head."""
        with torch.no_grad():
            return self.log_probs(self._policy.distribution_parameters(heads), actions)

    def value(self, observations: Tensor) -> Tensor:
        """Compute values `[N]` of observations `[N, O]`, for a policy without memory."""
        (values,) = self._kernels.compute(
            "value", lambda rows: (self._policy.value(self._normalize(rows)),), observations
        )
        return values

    def value_of_latents(self, latents: Tensor) -> Tensor:
        """Compute values `[N]` from outputs `[N, …]` of the critic's core."""
        (values,) = self._kernels.compute("latents", lambda rows: (self._policy.value_of_hidden(rows),), latents)
        return values

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Compute parameters `[N, D]` of the action distribution and values of observations `[N, O]`, for a policy without memory."""
        parameters, values = self._kernels.compute(
            "forward", lambda rows: self._policy(self._normalize(rows)), observations
        )
        return parameters, values

    def sequences(self, observations: Tensor, states: Tensor, resets: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Compute parameters `[L * n, D]` and values of whole sequences, observations `[L, n, O]`, `length` steps at a time.

        `states` are `[n, S]`, before the first step; `resets`, bool `[L, n]`, is True where the state is set to zero before the step.
        """

        def formula(rows: Tensor, before: Tensor, starts: Tensor) -> tuple[Tensor, ...]:
            return self._policy.unrolled(self._normalize(rows.flatten(0, 1)), before, starts != 0)

        results = []
        for rows, starts in zip(observations.split(length), resets.to(self._dtype).split(length), strict=True):
            arguments = rows.contiguous(), states.contiguous(), starts
            *outputs, states = self._kernels.kernel("sequences", formula, arguments)(*arguments)
            results.append([output.clone() for output in outputs])
        parameters, values = (torch.cat(parts) for parts in zip(*results, strict=True))
        return parameters, values

"""Forward passes of a policy as interpreted kernels: normalization and networks in one call, without the cost of each operation."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.compiling.kernels import Formula, InterpretedKernel
from lockstep.compiling.row_kernels import RowKernels
from lockstep.models.numpy_policy import Head, Step
from lockstep.models.policy import Policy

__all__ = ["PolicyKernels"]


class _Bound(NamedTuple):
    """A kernel whose arguments and results stay at their addresses."""

    kernel: InterpretedKernel
    run: Callable[[], None]
    arguments: list[NDArray[Any]]
    results: list[NDArray[Any]]


class PolicyKernels:
    """Kernels of a policy without images, on the CPU in the precision of its weights.

    They read weights and running statistics in place, so that they follow training and loading. Their results equal those of the
    `Policy` up to rounding, and have the same bits on every processor. Each kernel is made when it is first used.
    """

    def __init__(self, policy: Policy, normalize: Callable[[Tensor], Tensor], kernels: RowKernels) -> None:
        """Create those of `policy`, and keep them in `kernels`. `normalize` normalizes observations `[N, O]`."""
        self._policy, self._normalize, self._kernels = policy, normalize, kernels
        self._dtype = policy.policy_head.weight.dtype
        self._bound: dict[int, _Bound] = {}

    def head(self, count: int) -> Head:
        """Return a function of `count` observations, as `NumpyPolicy.head` does."""
        _, run, (rows,), (result,) = self._bind(count, lambda rows: (self._policy.head(self._normalize(rows)),))

        def head(observations: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
            rows[:] = observations
            run()
            out[:] = result
            return out

        return head

    def step(self, count: int) -> Step:
        """Return a function of `count` observations that updates the memory, as `NumpyPolicy.step` does."""
        _, run, (rows, before), (head_result, latent_result, after) = self._bind(
            count, lambda rows, state: self._policy.unrolled_step(self._normalize(rows), state)
        )

        def step(observations: NDArray[Any], state: NDArray[Any], head: NDArray[Any], latent: NDArray[Any]) -> None:
            rows[:], before[:] = observations, state
            run()
            head[:], latent[:], state[:] = head_result, latent_result, after

        return step

    def value(self, observations: Tensor) -> Tensor:
        """Compute values `[N]` of observations `[N, O]`, for a policy without memory."""
        (values,) = self._kernels.compute(
            "value", lambda rows: (self._policy.value(self._normalize(rows)),), observations
        )
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
            arguments = rows.contiguous(), states, starts
            *outputs, states = self._kernels.kernel("sequences", formula, arguments)(*arguments)
            results.append([output.clone() for output in outputs])
        parameters, values = (torch.cat(parts) for parts in zip(*results, strict=True))
        return parameters, values

    def _bind(self, count: int, formula: Formula) -> _Bound:
        """Return the kernel of a step for `count` observations, prepared for the current weights."""
        if count not in self._bound:
            policy = self._policy
            sizes = (policy.observation_size, policy.state_size) if policy.state_size else (policy.observation_size,)
            arguments = [torch.zeros(count, size, dtype=self._dtype) for size in sizes]
            with torch.no_grad():
                kernel = self._kernels.make(formula, arguments, prepares=True)
            run, results = kernel.bind(*arguments)
            self._bound[count] = _Bound(
                kernel, run, *([x.numpy() for x in tensors] for tensors in (arguments, results))
            )
        self._bound[count].kernel.prepare()
        return self._bound[count]

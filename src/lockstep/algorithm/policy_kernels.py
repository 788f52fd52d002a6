"""Forward passes of a policy as interpreted kernels: normalization and networks in one call, without the cost of each operation."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.compiling.kernels import BLOCK, Formula, InterpretedKernel
from lockstep.models.numpy_policy import Head, Step
from lockstep.models.policy import Policy

__all__ = ["MakeInterpreted", "PolicyKernels"]


class MakeInterpreted(Protocol):
    """Function that makes kernels, as `interpreted` does."""

    def __call__(self, formula: Formula, examples: Sequence[Tensor], prepares: bool = False) -> InterpretedKernel:
        """Trace a formula, for arguments with the shapes and dtypes of the examples."""


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

    def __init__(self, policy: Policy, normalize: Callable[[Tensor], Tensor], make: MakeInterpreted) -> None:
        """Create the kernels of `policy`. `normalize` normalizes observations `[N, O]`."""
        self._policy, self._normalize, self._make = policy, normalize, make
        self._dtype = policy.policy_head.weight.dtype
        self._bound: dict[int, _Bound] = {}
        self._kernels: dict[tuple[object, ...], InterpretedKernel] = {}

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
        (values,) = self._in_blocks(lambda rows: (self._policy.value(self._normalize(rows)),), "value", observations)
        return values

    def forward(self, observations: Tensor) -> tuple[Tensor, Tensor]:
        """Compute parameters `[N, D]` of the action distribution and values of observations `[N, O]`, for a policy without memory."""
        parameters, values = self._in_blocks(lambda rows: self._policy(self._normalize(rows)), "forward", observations)
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
            *outputs, states = self._kernel(formula, "sequences", arguments)(*arguments)
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
                kernel = self._make(formula, arguments, prepares=True)
            run, results = kernel.bind(*arguments)
            self._bound[count] = _Bound(
                kernel, run, *([x.numpy() for x in tensors] for tensors in (arguments, results))
            )
        self._bound[count].kernel.prepare()
        return self._bound[count]

    def _in_blocks(self, formula: Formula, name: str, rows: Tensor) -> list[Tensor]:
        """Compute a formula of rows in blocks of one size, or two."""
        rows, size = rows.contiguous(), math.ceil(len(rows) / math.ceil(len(rows) / BLOCK))
        results: list[Tensor] = []
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            kernel = self._kernel(formula, name, (block,))
            results = results or [rows.new_empty(len(rows), *shape[1:]) for shape in kernel.shapes]
            kernel.write((block,), [result[start : start + size] for result in results])
        return results

    def _kernel(self, formula: Formula, name: str, arguments: Sequence[Tensor]) -> InterpretedKernel:
        """Return the kernel of a formula, which is traced when it is first used with arguments of these shapes."""
        key = name, *(argument.shape for argument in arguments)
        if key not in self._kernels:
            with torch.no_grad():
                self._kernels[key] = self._make(formula, arguments)
        return self._kernels[key]

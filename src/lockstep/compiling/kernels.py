"""Pure functions of tensors, run by PyTorch operation by operation, or traced once and run by the interpreter."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from lockstep.compiling.library import load_interpreter
from lockstep.compiling.trace import trace

__all__ = ["Formula", "Kernel", "MakeKernel", "eager", "interpreted"]

Kernel = Callable[..., Sequence[Tensor]]
"""Function from tensors to tensors, all of fixed shapes."""


class Formula(Protocol):
    """Pure function of tensors."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return contiguous tensors that share no memory with the arguments."""


MakeKernel = Callable[[Formula, Sequence[Tensor]], Kernel]
"""Function that creates the kernel of a formula, for arguments with the shapes and dtypes of the examples."""


def eager(formula: Formula, examples: Sequence[Tensor]) -> Kernel:
    """Return the formula itself, which PyTorch runs operation by operation."""
    return formula


def interpreted(formula: Formula, examples: Sequence[Tensor]) -> Kernel:
    """Trace a formula of float32 or float64 tensors, and return a kernel that runs on one thread.

    The arguments of the kernel must be contiguous, and have the shapes and dtypes of the examples. The results have the same bits on
    every processor. Two threads may not call a kernel at the same time. Raises Unsupported if the
    formula uses an operation that the interpreter does not have, and CompilerFailed.
    """
    return _Interpreted(formula, examples)


class _Interpreted:
    """A program, its memory, and the addresses of its arrays."""

    def __init__(self, formula: Formula, examples: Sequence[Tensor]) -> None:
        library, (program, captured, self._shapes) = load_interpreter(), trace(formula, examples)
        self._dtype = examples[0].dtype
        self._run = library.lockstep_run_float if self._dtype == torch.float32 else library.lockstep_run_double
        memory = torch.empty(program.memory, dtype=self._dtype)
        constants = torch.from_numpy(program.constants).to(self._dtype)
        self._first_argument, self._first_result = 2, 2 + len(examples) + len(captured)
        self._addresses = (ctypes.c_void_p * (self._first_result + len(self._shapes)))()
        for place, tensor in enumerate((memory, constants, *examples, *captured)):
            self._addresses[place] = tensor.data_ptr()
        self._kept = program.words, memory, constants, captured  # their memory is used by address
        self._call = program.words.ctypes.data, len(program.words), ctypes.addressof(self._addresses)

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        addresses, place = self._addresses, self._first_argument
        for tensor in tensors:
            addresses[place] = tensor.data_ptr()
            place += 1
        results = [torch.empty(shape, dtype=self._dtype) for shape in self._shapes]
        place = self._first_result
        for result in results:
            addresses[place] = result.data_ptr()
            place += 1
        self._run(*self._call)
        return results

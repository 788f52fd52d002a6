"""Pure functions of tensors, run by PyTorch operation by operation, or traced once and run by the interpreter."""

import ctypes
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lockstep.compiling.library import load_interpreter, loaded_interpreter
from lockstep.compiling.trace import trace

__all__ = ["MOST_ROWS", "Formula", "InterpretedKernel", "Kernel", "MakeKernel", "eager", "rows_per_call"]

MOST_ROWS = 256
"""Largest number of rows per call of an interpreted kernel: intermediate results of that many rows stay in the cache."""
_WORD = 8
"""Bytes of a word of a program."""
_MOST_ELEMENTS = 2**22
"""Largest number of elements per argument and call: rows of images are large."""

Kernel = Callable[..., Sequence[Tensor]]
"""Function from tensors to tensors, all of fixed shapes. The next call may overwrite its results, except for those that are arguments of it."""

Formula = Callable[..., tuple[Tensor, ...]]
"""Pure function of tensors. It returns contiguous tensors that share no memory with its arguments."""

MakeKernel = Callable[[Formula, Sequence[Tensor]], Kernel]
"""Function that creates the kernel of a formula, for arguments with the shapes and dtypes of the examples."""


def rows_per_call(*rows: Tensor) -> int:
    """Return the largest number of rows of the arguments `[N, …]` that one call of an interpreted kernel should take."""
    return max(1, min([MOST_ROWS, *(_MOST_ELEMENTS // max(1, tensor.shape[1:].numel()) for tensor in rows)]))


def eager(formula: Formula, examples: Sequence[Tensor]) -> Kernel:
    """Return the formula itself, which PyTorch runs operation by operation."""
    return formula


class InterpretedKernel:
    """Kernel of a formula of float32 or float64 tensors: its program, the memory of the program, and the addresses of its arrays.

    The arguments of a call must be contiguous, and have the shapes and dtypes of the examples; some may be uint8, but not the first. A call runs
    on one thread and overwrites the results of the previous call, see `Kernel`. The results have the same bits on every processor. Two threads
    may not call a kernel at the same time.
    """

    def __init__(self, formula: Formula, examples: Sequence[Tensor], packs_weights: bool = False) -> None:
        """Trace the formula.

        With `packs_weights`, `prepare` must be called before the first call, and whenever the values of tensors that the formula holds have changed.
        Raises Unsupported if the formula uses an operation that the interpreter does not have, and CompilerFailed.
        """
        # once in a process: the library may have been replaced since then, by another version
        library = loaded_interpreter() or load_interpreter()
        program, captured, self._shapes = trace(formula, examples, packs_weights)
        self._dtype = examples[0].dtype
        self._run = library.lockstep_run_float if self._dtype == torch.float32 else library.lockstep_run_double
        memory = torch.empty(program.memory, dtype=self._dtype)
        constants = torch.from_numpy(program.constants).to(self._dtype)
        self._first_argument, self._first_result = 2, 2 + len(examples) + len(captured)
        self._results: list[list[Tensor]] = []
        """Up to two sets of tensors for the results of calls; the first one was written last."""
        self._addresses = (ctypes.c_void_p * (self._first_result + len(self._shapes)))()
        for index, tensor in enumerate((memory, constants, *examples, *captured)):
            self._addresses[index] = tensor.data_ptr()
        self._first = program.first
        self._kept: tuple[object, ...] = program, memory, constants, captured  # their memory is used by address
        self._call, self._preparation = (
            (words.ctypes.data, len(words), ctypes.addressof(self._addresses))
            for words in (program.words, program.preparation)
        )

    def prepare(self) -> None:
        """Compute what depends only on the tensors that the formula holds."""
        self._run(*self._preparation)

    def bind(self, *arguments: Tensor) -> tuple[Callable[[], None], list[Tensor]]:
        """Return a function that runs the kernel on the present content of `arguments`, and the tensors that it overwrites with the results.

        It takes a microsecond less than a call of the kernel, which must not be called any more.
        """
        results, call = self._empty_results(), self._call
        self._set_addresses(arguments, results)
        self._kept = *self._kept, arguments, results
        return lambda: self._run(*call), results

    @property
    def shapes(self) -> Sequence[torch.Size]:
        """Shapes of the results."""
        return self._shapes

    def write(self, arguments: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        """Compute the results in contiguous tensors, which share no memory with the arguments."""
        self._set_addresses(arguments, results)
        self._run(*self._call)

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        """Compute the results. The next call overwrites them, except for those that are its arguments, not views of them."""
        results = self._results_for(tensors)
        self.write(tensors, results)
        return results

    def call_in_two(self, tensors: Sequence[Tensor], then: Callable[[Tensor], object]) -> Sequence[Tensor]:
        """Call the kernel, and call `then` with the first result as soon as that is complete, before the others are computed."""
        results = self._results_for(tensors)
        self._set_addresses(tensors, results)
        words, count, addresses = self._call
        self._run(words, self._first, addresses)
        then(results[0])
        self._run(words + self._first * _WORD, count - self._first, addresses)
        return results

    def _results_for(self, arguments: Sequence[Tensor]) -> list[Tensor]:
        """Return tensors for the results of a call that are none of its arguments."""
        if not self._results:
            self._results.append(self._empty_results())
        elif any(tensor is result for tensor in arguments for result in self._results[0]):
            other = self._results.pop() if len(self._results) > 1 else self._empty_results()
            self._results.insert(0, other)
        return self._results[0]

    def _empty_results(self) -> list[Tensor]:
        return [torch.empty(shape, dtype=self._dtype) for shape in self._shapes]

    def _set_addresses(self, arguments: Sequence[Tensor], results: Sequence[Tensor]) -> None:
        addresses, index = self._addresses, self._first_argument
        for tensor in arguments:
            addresses[index] = tensor.data_ptr()
            index += 1
        index = self._first_result
        for tensor in results:
            addresses[index] = tensor.data_ptr()
            index += 1

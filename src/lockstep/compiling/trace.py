"""Tracing: a formula is run once, and the operations of PyTorch that it runs become a program for the interpreter."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.compiling import elementwise, structural  # noqa: F401  they register their operations
from lockstep.compiling.lowering import Call, Lowering, lower, storage_of
from lockstep.compiling.program import Program
from lockstep.compiling.values import Value, View

__all__ = ["Trace", "trace"]


class Trace(NamedTuple):
    """A program. Its arrays are the working memory, constants, the arguments, the captured tensors and the results, in this order."""

    program: Program
    captured: list[Tensor]
    shapes: list[torch.Size]
    """Shapes of the results."""


class _Recorder(TorchDispatchMode):
    """Records the calls of PyTorch's operations. It holds all tensors, so that every storage is another one."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch imports its compiler, which takes seconds; without this method it still works

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        results = [part for part in _flat(result) if isinstance(part, Tensor)]
        self.calls.append(Call(func.overloadpacket.__name__, args, kwargs or {}, results))
        return result


def trace(formula: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor]) -> Trace:
    """Run a formula on copies of `examples`, and translate its operations. Raises Unsupported."""
    arguments = [example.detach().clone() for example in examples]
    with _Recorder() as recorder:
        results = formula(*arguments)
    lowering = Lowering(arguments)
    for call in _needed(recorder.calls, results):
        lower(lowering, call)
    for result in results:
        lowering.view(result)  # may capture one more tensor, and the arrays of results follow those
    first = 2 + len(arguments) + len(lowering.captured)
    for index, result in enumerate(results):
        _return(lowering, result, first + index)
    return Trace(lowering.builder.build(), lowering.captured, [result.shape for result in results])


def _return(lowering: Lowering, result: Tensor, array: int) -> None:
    """Let an array be a result: the value itself is computed there if possible."""
    view = lowering.view(result)
    if view.value.array is None and view.value.size == result.numel() and view.is_contiguous:
        view.value.array = array
    else:
        lowering.builder.copy(view, View.contiguous(Value(result.numel(), array), view.sizes))


def _needed(calls: Sequence[Call], results: Sequence[Tensor]) -> list[Call]:
    """Return the calls that write something on which the results depend. Calls that only make views write nothing."""
    storages = {storage_of(result) for result in results}
    needed = list[Call]()
    for call in reversed(calls):
        inputs = {
            storage_of(part) for part in _flat((call.args, list(call.kwargs.values()))) if isinstance(part, Tensor)
        }
        written = {storage_of(result) for result in call.results}
        if written & storages and (not written <= inputs or call.name.endswith("_")):
            needed.append(call)
            storages |= inputs
    return needed[::-1]


def _flat(nested: Any) -> list[Any]:
    return [part for item in nested for part in _flat(item)] if isinstance(nested, (tuple, list)) else [nested]

"""Tracing: a formula is run once, and the operations of PyTorch that it runs become a program for the interpreter."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lockstep.compiling import convolution, elementwise, structural  # noqa: F401  they register their operations
from lockstep.compiling.lowering import Call, LoweringContext, lower_call, storage_of
from lockstep.compiling.program import Program
from lockstep.compiling.values import Unsupported, Value, View

__all__ = ["Trace", "trace"]


class Trace(NamedTuple):
    """A program. Its arrays are the working memory, constants, the arguments, the captured tensors and the results, in this order."""

    program: Program
    captured: list[Tensor]
    shapes: list[torch.Size]
    """Shapes of the results."""


_DATA_DEPENDENT = ("_local_scalar_dense", "equal", "is_nonzero")
"""Operations that return Python values. Control flow that depends on such values can't be traced."""
_OVERLOADS = ("out", "dtype")
"""Variants that write to a given tensor, or view memory as another type of number."""


class _Recorder(TorchDispatchMode):
    """Records the calls of PyTorch's operations. It keeps all tensors alive, so that no storage address is used twice."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: list[Call] = []

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # otherwise PyTorch imports its compiler, which takes seconds; without this method it still works

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, schema = func.overloadpacket.__name__, func._schema
        if name in _DATA_DEPENDENT or func._overloadname in _OVERLOADS:
            raise Unsupported(f"the operation {name}.{func._overloadname}")
        result = func(*args, **kwargs)
        given = {argument.name: value for argument, value in zip(schema.arguments, args, strict=False)} | kwargs
        changes = (a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
        changed = [tensor for key in changes if key in given for tensor in _tensors(given[key])]
        self.calls.append(Call(name, args, kwargs, _tensors(result), changed))
        return result


def trace(formula: Callable[..., Sequence[Tensor]], examples: Sequence[Tensor], packs_weights: bool = False) -> Trace:
    """Run a formula on copies of `examples`, and translate its operations. Raises Unsupported.

    With `packs_weights`, the program may have a preparation, to be run when the content of captured tensors has changed.
    """
    with torch.inference_mode(False):  # in that mode PyTorch does not decompose operations such as `to`
        arguments = [example.detach().clone() for example in examples]
        with _Recorder() as recorder:
            results = formula(*arguments)
    lowering = LoweringContext(arguments)
    for call in _needed(recorder.calls, results):
        lower_call(lowering, call)
    for result in results:
        lowering.view(result)  # may capture one more tensor, and the arrays of results follow those
    first = 2 + len(arguments) + len(lowering.captured)
    for index, result in enumerate(results):
        _bind_result(lowering, result, first + index)
    captured = range(2 + len(arguments), first) if packs_weights else range(0)
    return Trace(lowering.builder.build(captured, first), lowering.captured, [result.shape for result in results])


def _bind_result(lowering: LoweringContext, result: Tensor, array: int) -> None:
    """Bind an array to a result: the value itself is computed there if possible."""
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
        inputs = {storage_of(tensor) for tensor in _tensors((call.args, list(call.kwargs.values())))}
        written = {storage_of(tensor) for tensor in call.results} - inputs
        written |= {storage_of(tensor) for tensor in call.changed}
        if written & storages:
            needed.append(call)
            storages |= inputs
    return needed[::-1]


def _tensors(nested: Any) -> list[Tensor]:
    """Return the tensors in nested lists and tuples."""
    if isinstance(nested, (tuple, list)):
        return [tensor for item in nested for tensor in _tensors(item)]
    return [nested] if isinstance(nested, Tensor) else []

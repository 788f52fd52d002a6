"""Translation of calls of PyTorch's operations to instructions of a program."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from lockstep.compiling.program import Builder
from lockstep.compiling.values import Unsupported, Value, View

__all__ = ["Call", "Expression", "LoweringContext", "elementwise", "lower_call", "register_lowering", "storage_of"]


class Call(NamedTuple):
    """A call of an operation of PyTorch."""

    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: list[Tensor]
    changed: list[Tensor]
    """Arguments that the call changes in place."""


class LoweringContext:
    """The state of a translation: which value is in the storage of which tensor.

    Views need no instructions: a tensor is described by its storage, offset, sizes and strides.
    """

    def __init__(self, arguments: Sequence[Tensor]) -> None:
        self.builder = Builder()
        self.captured: list[Tensor] = []
        """Tensors that the formula holds: buffers of modules, for example."""
        self._arguments = arguments
        self._values = {
            storage_of(argument): Value(argument.numel(), 2 + index, is_bytes=argument.dtype == torch.uint8)
            for index, argument in enumerate(arguments)
        }
        self._sources: list[Tensor] = []
        self._unsupported: dict[int, str] = {}
        """Descriptions of the results that are not computed, by storage."""

    def has(self, tensor: Tensor) -> bool:
        """Return True if a tensor is an argument, or has been computed."""
        return storage_of(tensor) in self._values

    def view(self, tensor: Tensor) -> View:
        """Return the view that corresponds to a tensor."""
        value = self._values.get(storage_of(tensor))
        if storage_of(tensor) in self._unsupported:
            raise Unsupported(self._unsupported[storage_of(tensor)])
        if value is None:
            value = self._values[storage_of(tensor)] = self._capture(tensor)
        return View(value, int(tensor.storage_offset()), tuple(tensor.shape), tuple(tensor.stride()))

    def refuse(self, tensor: Tensor, what: str) -> None:
        """Mark a result, so that every later use of it raises Unsupported, which names `what`: its present values would be captured."""
        self._unsupported[storage_of(tensor)] = what

    def _capture(self, tensor: Tensor) -> Value:
        """Make the storage of a tensor that no call has computed an array of the program."""
        whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage())
        self._sources.append(whole)  # its address must not be used for another tensor
        self.captured.append(whole.to(self._arguments[0].dtype))
        return Value(whole.numel(), 2 + len(self._arguments) + len(self.captured) - 1)

    def define(self, tensor: Tensor, value: Value) -> None:
        """Bind a tensor's storage to `value`. Raises Unsupported if their sizes differ."""
        if value.size * tensor.element_size() != tensor.untyped_storage().nbytes():
            raise Unsupported(f"results with the strides {tensor.stride()}")
        self._values[storage_of(tensor)] = value


class Expression:
    """Element-wise operations that compute the result of one call, in the order in which its elements are in memory."""

    def __init__(self, lowering: LoweringContext, result: Tensor) -> None:
        self._lowering = lowering
        self._result = result
        strides = result.stride()
        self._dims = sorted(range(result.dim()), key=lambda d: -strides[d])
        self._sizes = tuple(result.shape[d] for d in self._dims)
        self.dtype = result.dtype
        """Dtype of the result in PyTorch."""

    def __call__(self, operation: str, *operands: Tensor | View | float, shared: bool = True) -> View:
        """Apply an operation of the interpreter. Operands are broadcast to the result."""
        return self._lowering.builder.apply(operation, self._sizes, [self._load(x) for x in operands], shared)

    def _load(self, operand: Tensor | View | float) -> View:
        if isinstance(operand, View):
            return operand
        if isinstance(operand, Tensor):
            view = self._lowering.view(operand.expand(self._result.shape))
            return View(view.value, view.offset, self._sizes, tuple(view.strides[d] for d in self._dims))
        number = self._lowering.builder.constant(operand)
        return View(number.value, 0, self._sizes, (0,) * len(self._sizes))

    def finish(self, content: Tensor | View | float, shared: bool = True) -> None:
        """Bind the result of the call to `content`, or to a copy of it if it is not `shared`."""
        if not isinstance(content, View) or content.value.array is not None or not shared:
            content = self("assign", content, shared=shared)
        self._lowering.define(self._result, content.value)


LoweringFunction = Callable[[LoweringContext, Call], None]
"""Function that adds the instructions of a call."""
_LOWERINGS: dict[str, LoweringFunction] = {}


def register_lowering(*names: str) -> Callable[[LoweringFunction], LoweringFunction]:
    """Register the function that translates the calls of some operations."""

    def register(function: LoweringFunction) -> LoweringFunction:
        _LOWERINGS.update(dict.fromkeys(names, function))
        return function

    return register


def elementwise(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of an Expression and the arguments of an operation that returns the operation's result."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        def compute(lowering: LoweringContext, call: Call) -> None:
            expression = Expression(lowering, call.results[0])
            try:
                result = function(expression, *call.args, **call.kwargs)
            except TypeError:
                raise Unsupported(f"these arguments of the operation {call.name!r}") from None
            expression.finish(result)

        register_lowering(*names)(compute)
        return function

    return register


def lower_call(lowering: LoweringContext, call: Call) -> None:
    """Add the instructions of a call. Raises Unsupported."""
    if not all(lowering.has(tensor) for tensor in call.changed):
        raise Unsupported("changes in place of tensors that the formula does not compute")
    function = _LOWERINGS.get(call.name) or _unsupported
    function(lowering, call)


def _unsupported(lowering: LoweringContext, call: Call) -> NoReturn:
    raise Unsupported(f"the operation {call.name!r} of PyTorch")


def storage_of(tensor: Tensor) -> int:
    """Identify the storage of a tensor, which may be empty."""
    return int(tensor.untyped_storage()._cdata)

"""Fusions: element-wise operations that the interpreter runs together, tile by tile."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lockstep.compiling.values import Value, View, collapse

__all__ = ["OPERATIONS", "Fusion", "encode_fusion"]

OPERATIONS = {
    name: code
    for code, name in enumerate(
        (
            *(
                "assign",
                "negate",
                "absolute",
                "exp",
                "expm1",
                "log",
                "log1p",
                "sqrt",
                "tanh",
                "sigmoid",
                "erf",
                "lgamma",
                "digamma",
            ),
            *(
                "trigamma",
                "truncate",
                "add",
                "subtract",
                "multiply",
                "divide",
                "minimum",
                "maximum",
                "less",
                "less_equal",
                "equal",
            ),
            *("not_equal", "and", "or", "where", "multiply_add", "multiply_subtract", "subtract_product", "log_beta"),
        )
    )
}
"""Codes of the operations in `interpreter.cpp`."""
_FUSED = {
    "add": ((0, "multiply_add"), (1, "multiply_add")),
    "subtract": ((0, "multiply_subtract"), (1, "subtract_product")),
}
"""Fused operations that replace an operation of two operands if one is a product, with the position of the product."""
_SLOTS = 64
"""Values of a tile, in `interpreter.cpp`."""
_SCRATCH, _DIRECT, _UNIFORM, _STRIDED, _BYTES = range(5)
"""Sources of an operand in `interpreter.cpp`."""


class _Operation(NamedTuple):
    name: str
    target: Value
    operands: tuple[View, ...]

    @property
    def reads(self) -> set[Value]:
        """The values of the operands."""
        return {view.value for view in self.operands}


@dataclass
class Fusion:
    """Element-wise operations on arrays of the same shape, without dimensions of size 1."""

    shape: tuple[int, ...]
    operations: list[_Operation] = field(default_factory=list)
    _values: set[object] = field(default_factory=set)

    @property
    def reads(self) -> list[Value]:
        """The values that operations read."""
        return [view.value for operation in self.operations for view in operation.operands]

    @property
    def writes(self) -> list[Value]:
        """The results of the operations."""
        return [operation.target for operation in self.operations]

    def has_room(self, operands: Sequence[View]) -> bool:
        """Return True if a tile can hold one more result and its operands."""
        return len(self._values.union(_operand(view, self) for view in operands)) < _SLOTS

    def add(self, name: str, target: Value, operands: Sequence[View]) -> None:
        """Add an operation."""
        self.operations.append(_Operation(name, target, tuple(operands)))
        self._values.update([target, *(_operand(view, self) for view in operands)])

    def fuse(self, uses: Counter[Value]) -> None:
        """Replace sums and differences of products by fused multiply-adds, which round once, where nothing else reads the product.

        `uses` has the number of reads of every value in the program.
        """
        products = {each.target: each for each in self.operations if each.name == "multiply" and uses[each.target] == 1}
        operations, fused = list[_Operation](), set[Value]()
        for operation in self.operations:
            for position, name in _FUSED.get(operation.name, ()):
                product = products.get(operation.operands[position].value)
                if product is not None and product.target.array is None:
                    fused.add(product.target)
                    operands = *product.operands, operation.operands[1 - position]
                    operation = _Operation(name, operation.target, operands)
                    break
            operations.append(operation)
        self.operations = [operation for operation in operations if operation.target not in fused]

    def can_add(self, operation: _Operation) -> bool:
        """Return True if the fusion can compute an operation whose result it reads, element by element."""
        size = operation.target.size
        reads = [view for each in self.operations for view in each.operands if view.value is operation.target]
        is_whole = all(math.prod(view.sizes) == size and view.is_contiguous for view in reads)
        return is_whole and size == math.prod(self.shape) and self.has_room(operation.operands)

    def move(self, operation: _Operation, other: "Fusion") -> None:
        """Move an operation to a later fusion with as many elements, which reads its result."""
        self.operations.remove(operation)
        other.operations.insert(0, operation)
        for fusion in (self, other):
            operands = (_operand(view, fusion) for each in fusion.operations for view in each.operands)
            fusion._values = {each.target for each in fusion.operations}
            fusion._values.update(operands)

    def computes(self, value: Value) -> bool:
        """Return True if a value is a result of the fusion."""
        return value in self._values


class _Slots:
    """Assigns slots of a tile."""

    def __init__(self) -> None:
        self._count = 0
        self._free: list[int] = []

    def allocate(self) -> int:
        """Return a slot that is free."""
        if self._free:
            return self._free.pop()
        self._count += 1
        return self._count - 1

    def free(self, slot: int) -> None:
        """Make a slot free again."""
        self._free.append(slot)


def encode_fusion(fusion: Fusion) -> list[int]:
    """Return the words of a fusion: its operands, then its operations."""
    last_use = {
        _operand(view, fusion): number
        for number, operation in enumerate(fusion.operations)
        for view in operation.operands
    }
    operands: list[list[int]] = []
    indices: dict[Value | View, int] = {}
    slots, taken = _Slots(), dict[Value | View, int]()
    for operation in fusion.operations:  # operands from memory are read first, and keep their slots
        for view in operation.operands:
            if not fusion.computes(view.value) and view not in indices:
                indices[view] = len(operands)
                operands.append(_encode_input(view, slots))
    words: list[int] = []
    for number, operation in enumerate(fusion.operations):
        sources = [_operand(view, fusion) for view in operation.operands]
        for source in dict.fromkeys(sources):
            if source in taken and last_use[source] == number:
                slots.free(taken.pop(source))  # the result may take its place
        target = operation.target
        indices[target] = len(operands)
        if target.array is None:
            taken[target] = slots.allocate()
            operands.append([_SCRATCH, taken[target]])
        else:
            operands.append([_DIRECT, target.array, target.offset])
        places = [indices[source] for source in sources]
        words += [OPERATIONS[operation.name], indices[target], *places, *places[:1] * (3 - len(places))]
    flat = [word for operand in operands for word in operand]
    return [math.prod(fusion.shape), len(operands), len(fusion.operations), *flat, *words]


def _operand(view: View, fusion: Fusion) -> Value | View:
    """Return what identifies an operand: the value itself if the fusion computes it, else the view."""
    return view.value if fusion.computes(view.value) else view


def _encode_input(view: View, slots: _Slots) -> list[int]:
    """Return the words of an operand that is read from memory."""
    if view.is_uniform and not view.value.is_bytes:
        return [_UNIFORM, *view.address, slots.allocate()]
    if view.is_contiguous and not view.value.is_bytes:
        return [_DIRECT, *view.address]
    sizes, (strides,) = collapse(view.sizes, view.strides)
    return [_BYTES if view.value.is_bytes else _STRIDED, *view.address, slots.allocate(), len(sizes), *sizes, *strides]

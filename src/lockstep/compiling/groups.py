"""Groups of element-wise operations, which the interpreter runs tile by tile."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lockstep.compiling.values import Value, View, collapse

__all__ = ["OPERATIONS", "Group", "encode_group"]

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


class _Step(NamedTuple):
    operation: str
    target: Value
    operands: tuple[View, ...]

    @property
    def reads(self) -> set[Value]:
        """The values of the operands."""
        return {view.value for view in self.operands}


@dataclass
class Group:
    """Element-wise operations on arrays of the same shape, without dimensions of size 1."""

    shape: tuple[int, ...]
    steps: list[_Step] = field(default_factory=list)
    _values: set[object] = field(default_factory=set)

    @property
    def reads(self) -> list[Value]:
        """The values that operations read."""
        return [view.value for step in self.steps for view in step.operands]

    @property
    def writes(self) -> list[Value]:
        """The results of the operations."""
        return [step.target for step in self.steps]

    def has_room(self, operands: Sequence[View]) -> bool:
        """Return True if a tile can hold one more result and its operands."""
        return len(self._values.union(_operand(view, self) for view in operands)) < _SLOTS

    def add(self, operation: str, target: Value, operands: Sequence[View]) -> None:
        """Add an operation."""
        self.steps.append(_Step(operation, target, tuple(operands)))
        self._values.update([target, *(_operand(view, self) for view in operands)])

    def fuse(self, uses: Counter[Value]) -> None:
        """Replace sums and differences of products by fused multiply-adds, which round once, where nothing else reads the product.

        `uses` has the number of reads of every value in the program.
        """
        products = {step.target: step for step in self.steps if step.operation == "multiply" and uses[step.target] == 1}
        steps, fused = list[_Step](), set[Value]()
        for step in self.steps:
            for position, operation in _FUSED.get(step.operation, ()):
                product = products.get(step.operands[position].value)
                if product is not None and product.target.array is None:
                    fused.add(product.target)
                    step = _Step(operation, step.target, (*product.operands, step.operands[1 - position]))
                    break
            steps.append(step)
        self.steps = [step for step in steps if step.target not in fused]

    def can_add(self, step: _Step) -> bool:
        """Return True if the group can compute a step whose result it reads, element by element."""
        reads = [view for each in self.steps for view in each.operands if view.value is step.target]
        is_whole = all(math.prod(view.sizes) == step.target.size and view.is_contiguous for view in reads)
        return is_whole and step.target.size == math.prod(self.shape) and self.has_room(step.operands)

    def move(self, step: _Step, other: "Group") -> None:
        """Move a step to a later group with as many elements, which reads its result."""
        self.steps.remove(step)
        other.steps.insert(0, step)
        for group in (self, other):
            operands = (_operand(view, group) for each in group.steps for view in each.operands)
            group._values = {each.target for each in group.steps}
            group._values.update(operands)

    def computes(self, value: Value) -> bool:
        """Return True if a value is a result of the group."""
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


def encode_group(group: Group) -> list[int]:
    """Return the words of a group: its operands, then its operations."""
    last_use = {_operand(view, group): number for number, step in enumerate(group.steps) for view in step.operands}
    operands: list[list[int]] = []
    indices: dict[Value | View, int] = {}
    slots, taken = _Slots(), dict[Value | View, int]()
    for step in group.steps:  # operands from memory are read first, and keep their slots
        for view in step.operands:
            if not group.computes(view.value) and view not in indices:
                indices[view] = len(operands)
                operands.append(_encode_input(view, slots))
    operations: list[int] = []
    for number, step in enumerate(group.steps):
        sources = [_operand(view, group) for view in step.operands]
        for source in dict.fromkeys(sources):
            if source in taken and last_use[source] == number:
                slots.free(taken.pop(source))  # the result may take its place
        target = step.target
        indices[target] = len(operands)
        if target.array is None:
            taken[target] = slots.allocate()
            operands.append([_SCRATCH, taken[target]])
        else:
            operands.append([_DIRECT, target.array, target.offset])
        places = [indices[source] for source in sources]
        operations += [OPERATIONS[step.operation], indices[target], *places, *places[:1] * (3 - len(places))]
    flat = [word for words in operands for word in words]
    return [math.prod(group.shape), len(operands), len(group.steps), *flat, *operations]


def _operand(view: View, group: Group) -> Value | View:
    """Return what identifies an operand: the value itself if the group computes it, else the view."""
    return view.value if group.computes(view.value) else view


def _encode_input(view: View, slots: _Slots) -> list[int]:
    """Return the words of an operand that is read from memory."""
    if view.is_uniform and not view.value.is_bytes:
        return [_UNIFORM, *view.address, slots.allocate()]
    if view.is_contiguous and not view.value.is_bytes:
        return [_DIRECT, *view.address]
    sizes, (strides,) = collapse(view.sizes, view.strides)
    return [_BYTES if view.value.is_bytes else _STRIDED, *view.address, slots.allocate(), len(sizes), *sizes, *strides]

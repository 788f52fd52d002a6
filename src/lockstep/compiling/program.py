"""Programs for the interpreter: instructions on arrays of numbers, as `interpreter.cpp` reads them."""

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from lockstep.compiling.fusion import Fusion, encode_fusion
from lockstep.compiling.instructions import (
    ADD_COPY,
    ARGMAX,
    COPY,
    FUSION,
    GATHER,
    INDEXED_PRODUCT,
    PACK,
    PACKED_PRODUCT,
    PRODUCT,
    REDUCE,
    SCATTER_ADD,
    Single,
)
from lockstep.compiling.memory import assign_memory, is_assembled, place_parts
from lockstep.compiling.values import Unsupported, Value, View, collapse

__all__ = ["Builder", "Program"]

_TILE = 32
"""Largest number of columns in a tile of a packed matrix, in `product.h`."""
_NARROW = 128
"""Largest distance between rows at which a matrix is read in place, in `product.h`."""
_RIGHT = 8
"""Index of the right matrix in the words of a product."""


class Program(NamedTuple):
    """A complete program."""

    words: NDArray[np.int64]
    first: int
    """Number of words after which the first result is complete."""
    preparation: NDArray[np.int64]
    """Instructions that only depend on the content of captured tensors. They are run before the others, once for each content."""
    memory: int
    """Size of the working memory, array 0."""
    constants: NDArray[np.float64]
    """Array 1."""


class Builder:
    """Collects the instructions of a program, and assigns memory when it is complete.

    An element-wise operation joins a fusion, operations on arrays of the same shape, if there is one that is late enough. Values that are used
    only within their fusion never leave the cache. The other instructions are run in the order in which they were added.
    """

    def __init__(self) -> None:
        self._items: list[Fusion | Single] = []
        self._preparation: list[Single] = []
        self._constants: dict[tuple[float, bool], Value] = {}
        self._computed: dict[object, View] = {}

    def constant(self, number: float) -> View:
        """Return a number, as a view without dimensions."""
        number = float(number)
        key = number, math.copysign(1, number) < 0
        value = self._constants.setdefault(key, Value(1, array=1, offset=len(self._constants)))
        return View(value, 0, (), ())

    def apply(self, operation: str, shape: tuple[int, ...], operands: Sequence[View], shared: bool = True) -> View:
        """Add an element-wise operation on views whose sizes are `shape`. Return its result, which is contiguous.

        The same operation on the same operands is computed once, unless it is not `shared` because its result will be changed.
        """
        key = operation, shape, tuple(operands)
        if shared and key in self._computed:
            return self._computed[key]
        _check_bounds(operands)
        target = Value(math.prod(shape))
        fused_shape = tuple(size for size in shape if size != 1)
        first = max((self._first_place(view, target, fused_shape) for view in operands), default=0)
        for index in range(first, len(self._items)):
            fusion = self._items[index]
            if isinstance(fusion, Fusion) and fusion.shape == fused_shape and fusion.has_room(operands):
                break
        else:
            index, fusion = len(self._items), Fusion(fused_shape)
            self._items.append(fusion)
        fusion.add(operation, target, operands)
        target.written_by = index
        result = View.contiguous(target, shape)
        if shared:
            self._computed[key] = result
        return result

    def _first_place(self, view: View, target: Value, shape: tuple[int, ...]) -> int:
        """Return the index of the first instruction that can read a view element by element for a result."""
        index = view.value.written_by
        if index is None:
            return 0
        writer = self._items[index]
        is_whole = view.value.size == target.size and view.is_contiguous
        return index if isinstance(writer, Fusion) and writer.shape == shape and is_whole else index + 1

    def _add(self, kind: int, words: Sequence[View | int], reads: Sequence[View], target: Value) -> None:
        if any(view.value.is_bytes for view in reads):
            raise Unsupported("operations on bytes that are not element-wise")
        _check_bounds([word for word in words if isinstance(word, View)])
        target.written_by = len(self._items)
        self._items.append(Single(kind, tuple(words), [view.value for view in reads], [target]))

    def copy(self, source: View, target: View, adds: bool = False) -> None:
        """Copy a view to another one with the same sizes or, if it `adds`, add it. No other instruction may have read the target's value yet."""
        if source.sizes != target.sizes:
            raise ValueError(f"a copy of {source.sizes} to {target.sizes}")
        order = sorted(range(len(target.sizes)), key=lambda dim: -target.strides[dim])  # that of the target's memory
        columns = ([numbers[dim] for dim in order] for numbers in (source.sizes, source.strides, target.strides))
        sizes, (from_strides, to_strides) = collapse(*columns)
        words: list[View | int] = [len(sizes), *sizes, source, *from_strides, target, *to_strides]
        self._add(ADD_COPY if adds else COPY, words, [source, target] if adds else [source], target.value)

    def reduce(self, source: View, dims: Sequence[int], maximum: bool = False) -> Value:
        """Add up the elements of some dimensions, or find their maximum. The result is contiguous."""
        kept = [d for d in range(len(source.sizes)) if d not in dims]
        target = Value(math.prod(source.sizes[d] for d in kept))
        parts = [
            collapse([source.sizes[d] for d in chosen], [source.strides[d] for d in chosen]) for chosen in (kept, dims)
        ]
        words: list[View | int] = [
            *(int(maximum), *(len(sizes) for sizes, _ in parts)),
            *(size for sizes, _ in parts for size in sizes),
            source,
            *(stride for _, (strides,) in parts for stride in strides),
            View.contiguous(target),
        ]
        self._add(REDUCE, words, [source], target)
        return target

    def argmax(self, source: View) -> Value:
        """Find the column of the first maximum in each row of a matrix."""
        target = Value(source.sizes[0])
        self._add(ARGMAX, [*source.sizes, *_strided(source), View.contiguous(target)], [source], target)
        return target

    def product(self, left: View, right: View, bias: View | None) -> Value:
        """Multiply matrices `[B, M, K]` and `[B, K, N]`, and add `bias` `[B, M, N]`, whose rows are contiguous."""
        (batches, rows, inner), columns = left.sizes, right.sizes[2]
        target = Value(batches * rows * columns)
        words: list[View | int] = [
            *(batches, rows, columns, inner),
            *_strided(left),
            *_strided(right),
        ]
        words += [-1, 0, 0, 0] if bias is None else [bias, *bias.strides[:2]]
        words += [View.contiguous(target), rows * columns, columns]
        self._add(PRODUCT, words, [left, right, *([] if bias is None else [bias])], target)
        return target

    def indexed_product(
        self, left: View, right: View, result: View, bias: View | None = None, adds: bool = False
    ) -> None:
        """Multiply matrices, and add a contiguous row `bias` `[N]` or, if it `adds`, the present content of the result.

        `left` is `[*M, *K]`: the dimensions of the result's rows, then the inner ones. `right` is `[K, N]`, where K is the product of
        the inner sizes. `result` is `[*M, N]`, with contiguous rows. No other instruction may have read its value yet.
        """
        dims = len(result.sizes) - 1
        (inner, width), sizes = right.sizes, left.sizes
        if inner != math.prod(sizes[dims:]) or sizes[:dims] != result.sizes[:-1] or width != result.sizes[-1]:
            raise ValueError(f"a product of {sizes} and {right.sizes} is not {result.sizes}")
        rows, (left_rows, target_rows) = collapse(sizes[:dims], left.strides[:dims], result.strides[:dims])
        columns, (left_columns,) = collapse(sizes[dims:], left.strides[dims:])
        words: list[View | int] = [len(rows), len(columns), width, int(adds), *rows, *columns, left, *left_rows]
        words += [*left_columns, *_strided(right), *([-1, 0] if bias is None else [bias]), result, *target_rows]
        self._add(
            INDEXED_PRODUCT,
            words,
            [left, right, *([] if bias is None else [bias]), *([result] if adds else [])],
            result.value,
        )

    def gather(self, source: View, index: View) -> Value:
        """Read the elements of the rows of a matrix whose columns are `index` `[M, N]`. Elements that do not exist are NaN."""
        target = Value(math.prod(index.sizes))
        part = View.contiguous(target, index.sizes)
        words = [*index.sizes, source.sizes[1], *_strided(source), *_strided(index), *_strided(part)]
        self._add(GATHER, words, [source, index], target)
        return target

    def scatter_add(self, target: View, index: View, source: View) -> None:
        """Add the elements of a matrix to those of the rows of `target` whose columns are `index` `[M, N]`, if they exist. Nothing may have read the target's value."""
        words = [*index.sizes, target.sizes[1], *_strided(target), *_strided(index), *_strided(source)]
        self._add(SCATTER_ADD, words, [target, index, source], target.value)

    def _pack(self, captured: range) -> None:
        """Pack each right matrix once for all products that need it packed.

        A product by one of the `captured` arrays has a copy as well, which the preparation makes.
        """
        products = defaultdict[View, list[int]](list)
        for index, item in enumerate(self._items):
            if isinstance(item, Single) and item.kind == PRODUCT and item.words[0] == 1:
                products[cast(View, item.words[_RIGHT])].append(index)
        packs: dict[int, list[Single]] = defaultdict(list)
        for right, indices in products.items():
            _, inner, columns = right.sizes
            in_place, is_captured = right.strides[2] == 1 and right.strides[1] <= _NARROW, right.value.array in captured
            if in_place or (len(indices) == 1 and not is_captured):
                continue
            packed = Value(inner * (-(-columns // _TILE) * _TILE))
            pack = Single(PACK, (inner, columns, *_strided(right), View.contiguous(packed)), [right.value], [packed])
            (self._preparation if is_captured else packs[indices[0]]).append(pack)
            for index in indices:
                self._items[index] = _packed(cast(Single, self._items[index]), packed)
        self._items = [new for index, item in enumerate(self._items) for new in (*packs[index], item)]

    def build(self, captured: range = range(0), first_result: int | None = None) -> Program:
        """Assign memory, and return the program. The content of the arrays `captured` changes only between preparations.

        `first_result` is the array of the first result, which is computed as early as possible.
        """
        self._pack(captured)
        uses = Counter(value for item in self._items for value in item.reads)
        for item in self._items:
            if isinstance(item, Fusion):
                item.fuse(uses)
        self._move_to_readers()
        self._copy_early(first_result)
        self._items = place_parts(self._items, first_result)
        writers = [index + 1 for index, item in enumerate(self._items) if _writes(item, first_result)]
        memory = assign_memory(self._items, self._preparation)
        constants = np.array([number for number, _ in self._constants], np.float64)
        words = _encode_all(self._items)
        first = len(_encode_all(self._items[: max(writers, default=len(self._items))]))
        return Program(words, first, _encode_all(self._preparation), memory, constants)

    def _move_to_readers(self) -> None:
        """Move operations to the only fusion that reads their results, if the lifetime of at most one operand grows.

        So derivatives of activation functions, for example, are computed in the backward pass, and need no memory from the forward pass on.
        """
        indices: dict[Value, set[int]] = defaultdict(set)
        for index, item in enumerate(self._items):
            for value in item.reads:
                indices[value].add(index)
        writers = Counter(value for item in self._items for value in set(item.writes))
        fusions = [(index, item) for index, item in enumerate(self._items) if isinstance(item, Fusion)]
        for index, fusion in reversed(fusions):
            for operation in reversed(fusion.operations):
                later, *others = indices[operation.target] or {index}
                reader = self._items[later]
                if later == index or others or operation.target.array is not None or writers[operation.target] > 1:
                    continue
                read_after = [
                    max(indices[value] - {index}, default=-1) for value in operation.reads if value.array is None
                ]
                is_cheap = -1 not in read_after and sum(last < later for last in read_after) <= 1
                if is_cheap and isinstance(reader, Fusion) and reader.can_add(operation):
                    fusion.move(operation, reader)
                    for value in operation.reads:
                        indices[value].add(later)
                        if value not in fusion.reads:
                            indices[value].discard(index)
        self._items = [item for item in self._items if isinstance(item, Single) or item.operations]

    def _copy_early(self, array: int | None) -> None:
        """Move the copies that make up an array of results to the instructions that compute what is copied: a concatenation comes after all of these."""
        writers = [item for item in self._items if _writes(item, array)]
        # otherwise the array is also filled, or written twice in part, and the order matters
        if len({item.writes[0] for item in writers}) != 1 or not is_assembled(writers[0].writes[0], writers):
            return
        written: dict[Value, int] = {}
        later: dict[int, list[Fusion | Single]] = defaultdict(list)
        for index, item in enumerate(self._items):
            if _writes(item, array):
                later[max((written.get(value, -1) for value in item.reads), default=-1)].append(item)
            else:
                later[index].insert(0, item)
                written |= dict.fromkeys(item.writes, index)
        self._items = [item for index in sorted(later) for item in later[index]]


def _check_bounds(views: Sequence[View]) -> None:
    """Raise ValueError if a view has elements outside of its value: the interpreter would read or write other memory."""
    for view in views:
        if not view.fits:
            raise ValueError(
                f"a view of {view.sizes} with strides {view.strides} from {view.offset} exceeds {view.value.size} numbers"
            )


def _writes(item: Fusion | Single, array: int | None) -> bool:
    """Return True if an instruction writes to an array of results."""
    return array is not None and any(value.array == array for value in item.writes)


def _packed(product: Single, right: Value) -> Single:
    """Return a product whose right matrix is the packed one."""
    view = View(right, 0, (1,), (1,))
    words = *product.words[:_RIGHT], view, *product.words[_RIGHT + 1 :]
    reads = [product.reads[0], right, *product.reads[2:]]
    return product._replace(kind=PACKED_PRODUCT, words=words, reads=reads)


def _strided(view: View) -> list[View | int]:
    return [view, *view.strides]


def _encode_all(items: Sequence[Fusion | Single]) -> NDArray[np.int64]:
    words: list[int] = []
    for item in items:
        body = encode_fusion(item) if isinstance(item, Fusion) else _encode(item)
        words += [FUSION if isinstance(item, Fusion) else item.kind, len(body) + 2, *body]
    return np.array(words, np.int64)


def _encode(item: Single) -> list[int]:
    return [number for word in item.words for number in (word.address if isinstance(word, View) else (word,))]

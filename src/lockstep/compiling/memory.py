"""Places of the values of a program in memory."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from lockstep.compiling.fusion import Fusion
from lockstep.compiling.instructions import COPY, Single, copied
from lockstep.compiling.values import Value, View

__all__ = ["assign_memory", "is_assembled", "place_parts"]

_ALIGNMENT = 16
"""Values in the working memory begin at multiples of this many numbers."""
Item = Fusion | Single


class _Memory:
    """Assigns ranges of the working memory, and uses them again."""

    def __init__(self) -> None:
        self.size = 0
        self._starts: dict[int, int] = {}
        """Ends of the unused ranges, by their starts."""
        self._ends: dict[int, int] = {}
        """Their starts, by their ends."""

    def allocate(self, size: int) -> int:
        """Return the start of a range, which is the smallest unused one that is large enough."""
        fitting = [(end - start, start) for start, end in self._starts.items() if end - start >= size]
        if not fitting:
            self.size += size
            return self.size - size
        _, start = min(fitting)
        end = self._starts.pop(start)
        del self._ends[end]
        if start + size < end:
            self.free(start + size, end)
        return start

    def free(self, start: int, end: int) -> None:
        """Make a range unused, and merge it with its neighbors."""
        start = self._ends.pop(start, start)
        end = self._starts.pop(end, end)
        self._starts[start], self._ends[end] = end, start


def is_assembled(value: Value, writers: Sequence[Item]) -> bool:
    """Return True if the instructions `writers`, all that write the value, are copies that write every number of it once."""
    copies = [item for item in writers if isinstance(item, Single) and item.kind == COPY]
    return len(copies) == len(writers) and sum(map(copied, copies)) == value.size


def place_parts(items: Sequence[Item], first_result: int | None) -> list[Item]:
    """Let instructions write parts of a concatenation at their place in it, and return the instructions without the copies.

    `first_result` is an array that the caller of the program may change before the last instructions.
    """
    writers = defaultdict[Value, list[Item]](list)
    for item in items:
        for value in dict.fromkeys(item.writes):
            writers[value].append(item)
    readers = Counter(value for item in items for value in item.reads)
    kept = list[Item]()
    for item in reversed(items):  # an outer concatenation comes after those that are its parts
        part = _copied_part(item)
        if part is not None:
            value, target = part
            whole = target.value
            array = _root(whole)[0].array
            is_free = value.array is None and value.whole is None and whole is not value and bool(writers[value])
            is_read_later = readers[value] > 1 and array is not None and array == first_result
            if is_free and not is_read_later and is_assembled(whole, writers[whole]):
                value.whole, value.offset = whole, target.offset
                continue
        kept.append(item)
    for value in writers:
        root, offset = _root(value)
        if value.whole is not None and root.array is not None:
            value.array, value.offset, value.whole = root.array, root.offset + offset, None
    return kept[::-1]


def _copied_part(item: Item) -> tuple[Value, View] | None:
    """Return what an instruction copies and its place, if it copies a whole value to numbers next to each other."""
    if isinstance(item, Fusion) or item.kind != COPY:
        return None
    dims, size, source, stride, target, target_stride = item.words[:6]
    if dims != 1 or not isinstance(source, View) or not isinstance(target, View):
        return None
    is_whole = source.offset == 0 and size == source.value.size
    return (source.value, target) if is_whole and stride == target_stride == 1 else None


def _root(value: Value) -> tuple[Value, int]:
    """Return the value that is no part of another one and has this value as a part, and the place of the part."""
    offset = 0
    while value.whole is not None:
        offset, value = offset + value.offset, value.whole
    return value, offset


def assign_memory(items: Sequence[Item], preparation: Iterable[Item]) -> int:
    """Give every value an address in the working memory, except for those that live within one fusion. Return the size of the memory."""
    memory = _Memory()
    last_use = {_root(value)[0]: index for index, item in enumerate(items) for value in (*item.reads, *item.writes)}
    taken: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for value in (value for item in preparation for value in item.writes):
        value.array, value.offset = 0, memory.allocate(_aligned(value.size))
    for index, item in enumerate(items):
        for value in item.writes:
            root, _ = _root(value)
            is_inside_fusion = root is value and isinstance(item, Fusion) and last_use[value] == index
            if root.array is None and not is_inside_fusion:
                root.array, root.offset = 0, memory.allocate(_aligned(root.size))
                taken[last_use[root]].append((root.offset, root.offset + _aligned(root.size)))
        for start, end in taken.pop(index, []):
            memory.free(start, end)
    values = dict.fromkeys(value for item in items for value in (*item.reads, *item.writes) if value.whole is not None)
    for value, (root, offset) in [(value, _root(value)) for value in values]:
        value.array, value.offset, value.whole = root.array, root.offset + offset, None
    return memory.size


def _aligned(size: int) -> int:
    return max(1, -(-size // _ALIGNMENT)) * _ALIGNMENT

"""Constants that the sources of the interpreter and the modules that write programs share."""

import re
from pathlib import Path

from lockstep.compiling import fusion, instructions, program, values

SOURCES = Path(program.__file__).parent


def text_of(name: str) -> str:
    return (SOURCES / name).read_text(encoding="utf-8")


def enumeration(name: str) -> list[str]:
    """Return the names of an enumeration of the interpreter, in order."""
    found = re.search(rf"enum {name} : int64_t {{(.*?)}};", text_of("interpreter.cpp"), re.DOTALL)
    assert found is not None
    return found[1].replace(" ", "").replace("\n", "").split(",")


def number(source: str, name: str) -> int:
    found = re.search(rf"constexpr int64_t {name} = (\d+);", text_of(source))
    assert found is not None
    return int(found[1])


def test_kinds_of_instructions() -> None:
    kinds = enumeration("Kind")
    assert [getattr(instructions, kind) for kind in kinds] == list(range(len(kinds)))


def test_sources_of_operands() -> None:
    sources = enumeration("Source")
    assert [getattr(fusion, f"_{source}") for source in sources] == list(range(len(sources)))


def test_operations() -> None:
    assert [name.lower() for name in enumeration("Operation")] == list(fusion.OPERATIONS)


def test_sizes() -> None:
    assert number("interpreter.cpp", "SLOTS") == fusion._SLOTS
    assert number("strided.h", "DIMENSIONS") == values._DIMENSIONS
    assert number("product.h", "NARROW") == program._NARROW
    widths = [int(width) for width in re.findall(r"constexpr int width = (\d+);", text_of("vectors.h"))]
    assert 2 * max(widths) == program._TILE

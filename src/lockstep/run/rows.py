"""Rows of metrics.jsonl and evaluations.jsonl: one JSON object per line, of numbers, lists of numbers and text."""

import json
import math

__all__ = ["parse_row"]

_COUNTS = ("iteration", "env_steps", "episodes")
_LARGEST = 2**63
_LONGEST = 100_000
"""Largest number of elements of a list, one per rank."""


def parse_row(line: bytes) -> dict[str, object] | None:
    """Parse a line; None if it is none. Readers can rely on the types of the counts, of `seconds` and of `digest`."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not _is_count(row.get("iteration")):
        return None
    if not all(row.get(name) is None or _is_count(row[name]) for name in _COUNTS):
        return None
    seconds = row.get("seconds", 0.0)
    if not _is_number(seconds) or not math.isfinite(seconds) or not isinstance(row.get("digest", ""), str):
        return None
    return row if all(map(_is_value, row.values())) else None


def _is_value(value: object) -> bool:
    if isinstance(value, list):
        return len(value) <= _LONGEST and all(map(_is_number, value))
    return value is None or isinstance(value, str) or _is_number(value)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or (isinstance(value, int) and abs(value) < _LARGEST)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _LARGEST

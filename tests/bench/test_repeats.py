"""Order of interleaved repeats, their spread, and ratios within a repeat."""

import pytest

from lockstep.bench.repeats import Spread, interleave, ratios, spread


def test_each_repeat_starts_with_the_next_run() -> None:
    order: list[str] = []

    def run(name: str):
        return lambda: order.append(name) or len(order)

    reported: list[tuple[int, str, int]] = []
    results = interleave({name: run(name) for name in "abc"}, 4, lambda *result: reported.append(result))
    assert "".join(order) == "abc" + "bca" + "cab" + "abc"
    assert results == {"a": [1, 6, 8, 10], "b": [2, 4, 9, 11], "c": [3, 5, 7, 12]}
    assert reported[3:5] == [(1, "b", 4), (1, "c", 5)]


def test_spread_consists_of_median_minimum_and_maximum() -> None:
    assert spread([3.0, 1.0, 2.0]) == Spread(2.0, 1.0, 3.0)
    assert spread([3.0, 1.0, 2.0]).range == 1.0
    assert spread([5.0]).range == 0.0


def test_ratios_are_computed_within_a_repeat() -> None:
    # in the second repeat the machine was half as fast for both
    assert ratios([200.0, 100.0, 300.0], [100.0, 50.0, 60.0]) == Spread(2.0, 2.0, 5.0)
    with pytest.raises(ValueError, match="shorter"):
        ratios([1.0, 2.0], [1.0])

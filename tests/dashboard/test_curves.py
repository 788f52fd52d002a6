"""Curves in bounded memory, compared with all rows."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.dashboard.curves import POINTS, Curves, CurvesFile, Position


def rows(first: int, last: int, **more: Any) -> list[dict[str, Any]]:
    """Rows of the iterations from `first` to `last`, with a loss that is missing in every third one."""
    return [
        {"iteration": i, "env_steps": 10 * i, "seconds": i / 4, "loss": None if i % 3 == 0 else float(i % 7), **more}
        for i in range(first, last + 1)
    ]


def reference(size: int, values: Sequence[float | None]) -> dict[str, list[float | None]]:
    """Mean, minimum and maximum of groups of `size` values."""
    groups = [[v for v in values[i : i + size] if v is not None] for i in range(0, len(values), size)]
    return {
        kind: [None if not group else float(f"{function(group):.6g}") for group in groups]
        for kind, function in (("mean", np.mean), ("low", min), ("high", max))
    }


@pytest.mark.parametrize("count", [1, POINTS, POINTS + 1, 4 * POINTS + 1])
@pytest.mark.parametrize("block", [7, 5000])
def test_points_are_statistics_of_equal_groups_of_rows(count: int, block: int) -> None:
    curves, added = Curves(), rows(1, count)
    for place in range(0, count, block):
        curves.append(added[place : place + block])
    tree: Any = curves.since(Position())
    expected = reference(curves.size, [row["loss"] for row in added])
    loss = tree["metrics"]["loss"]
    assert loss == (expected if curves.size > 1 else {"mean": expected["mean"]})
    ends = [min(count, (place + 1) * curves.size) for place in range(len(loss["mean"]))]
    assert tree["axes"] == {
        "iteration": ends,
        "env_steps": [10 * end for end in ends],
        "seconds": [end / 4 for end in ends],
    }
    assert POINTS // 2 <= len(ends) <= POINTS or count < POINTS


def test_reader_gets_only_what_is_new() -> None:
    curves, known, position = Curves(), [], Position()
    for last in range(3, 3 * POINTS, 3):
        curves.append(rows(last - 2, last))
        tree: Any = curves.since(position)
        position = Position(*tree["position"])
        known = known[: tree["from"]] + tree["metrics"]["loss"]["mean"]
        assert len(tree["axes"]["iteration"]) <= 4 or tree["from"] == 0
    complete: Any = curves.since(Position())
    assert known == complete["metrics"]["loss"]["mean"]
    other: Any = Curves().since(position)  # the run was resumed from an earlier iteration
    assert other["from"] == 0


def test_values_of_wrong_types_are_missing() -> None:
    curves = Curves()
    curves.append(
        [
            {"iteration": 1, "env_steps": "x", "loss": "1", "idle": [0.5, 0.25], "digest": "ab", "huge": 10**400},
            {"iteration": 2, "env_steps": 20, "loss": float("nan"), "idle": ["x"], "nested": {"a": 1}, "edge": 1.7e308},
            {"iteration": 3, "env_steps": [], "loss": 3, "idle": [], "edge": 1.7e308, "x" * 500: 1},
            {"iteration": 3, "loss": 9},
            {"iteration": None, "loss": 9},
            {"loss": 9},
        ]
    )
    tree: Any = curves.since(Position())
    assert tree["axes"] == {"iteration": [1, 2, 3], "env_steps": [None, 20, None], "seconds": [None] * 3}
    means = {name: values["mean"] for name, values in tree["metrics"].items()}
    assert means == {"idle": [0.375, None, None], "edge": [None, 1.7e308, 1.7e308], "loss": [None, None, 3]}
    assert curves.skipped == 3
    curves.append([{"iteration": 4 + number, f"m{number}": 1} for number in range(POINTS)])
    tree = curves.since(Position())
    json.dumps(tree, allow_nan=False)
    assert len(tree["metrics"]) == 128


def test_file_is_followed_and_read_again_after_a_resume(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    file = CurvesFile(path)
    file.update()
    assert (file.curves.rows, file.more, file.skipped) == (0, False, 0)
    write(path, rows(1, 9))
    file.update()
    before = file.curves.generation
    with path.open("a") as end:
        end.write('{"iteration": 10}\nbroken\n{"iter')
    file.update()
    assert (file.curves.rows, file.curves.generation, file.skipped) == (10, before, 1)
    write(tmp_path / "new", rows(1, 5))
    (tmp_path / "new").rename(path)
    file.update()
    assert (file.curves.rows, file.skipped) == (5, 0)
    assert file.curves.generation != before


def write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))

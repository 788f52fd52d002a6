"""The figure of a scaling benchmark, drawn from synthetic rows."""

from pathlib import Path

import pytest

from lockstep.phases import PHASES
from lockstep.report.scaling import draw_scaling

pytestmark = pytest.mark.extra("matplotlib")


def row(kind: str, ranks: int, speedup: float, players: bool = False, solved: float | None = None) -> dict[str, object]:
    parts = ("median", "least", "most")
    shares = {f"rank0_{phase}_share": 1 / 6 for phase in PHASES}
    shares |= {f"players_{phase}_share": 1 / 6 if players else None for phase in PHASES}
    return {
        **{"kind": kind, "ranks": ranks, "more_ranks_than_cores": ranks > 2, "speedup_base_ranks": 1},
        **{f"speedup_{part}": speedup for part in parts},
        **{f"efficiency_{part}": speedup / ranks for part in parts},
        **{"rank0_iter_mean_ms": 12.0, "players_iter_mean_ms": 10.0 if players else None, "solved_return": 475.0},
        **{f"seconds_to_return_{part}": None if part == "most" else solved for part in parts},
        **shares,
    }


@pytest.mark.parametrize("ending", ["png", "svg"])
def test_the_figure_is_written(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"scaling.{ending}"
    rows = [row("strong", 1, 1.0), row("strong", 16, 9.0, players=True), row("weak", 2, 1.8)]
    draw_scaling(rows, "CartPole-v1", path)
    assert path.stat().st_size > 10_000


def test_the_figure_has_labels(tmp_path: Path) -> None:
    path = tmp_path / "scaling.svg"
    draw_scaling([row("strong", 1, 1.0, solved=9.5), row("strong", 4, 3.0, players=True)], "A task", path)
    text = path.read_text()
    words = ("A task", "ideal", "speed-up (to 1 rank)", "efficiency (speed-up per rank)", "time to a return of 475 (s)")
    for word in (*words, "ranks (hollow: more than cores)", "strong, 4 ranks, players", "wait (idle)", "12 ms"):
        assert f">{word}<" in text, word
    draw_scaling([row("strong", 1, 1.0)], "A task", path)
    assert "time to a return" not in path.read_text()
    assert "hollow" not in path.read_text()

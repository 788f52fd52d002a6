from pathlib import Path
from typing import Any

import pytest

from lockstep.phases import PHASES
from lockstep.report.experiments import RecordedRun
from lockstep.report.timing import draw_timing, mean_seconds, plain_number

pytest.importorskip("matplotlib", reason="pip install 'lockstep-rl[report]'")


def rows(count: int, *prefixes: str, step: float = 1.0) -> list[dict[str, Any]]:
    return [
        {
            "env_steps": 100 * number,
            "seconds": float(number),
            **{f"{prefix}_iter": step * number * sum(range(1, 7)) for prefix in prefixes},
            **{
                f"{prefix}_{phase}": step * number * weight
                for prefix in prefixes
                for weight, phase in enumerate(PHASES, 1)
            },
        }
        for number in range(1, count + 1)
    ]


def test_means_by_role_and_phase() -> None:
    expected = {phase: 2.0 * weight for weight, phase in enumerate(PHASES, 1)}
    assert mean_seconds(rows(3, "t")) == {"rank 0 (plays and trains)": expected}
    assert mean_seconds(rows(3, "t", "player_t")) == {"rank 0 (trains)": expected, "players (mean)": expected}
    assert mean_seconds([]) == {}


def test_figure_of_a_run_with_players(tmp_path: Path) -> None:
    draw_timing([RecordedRun("split", {}, rows(250, "t", "player_t"))], tmp_path / "a.svg", "seconds")
    text = (tmp_path / "a.svg").read_text()
    for words in ("rank 0 (trains)", "players (mean)", "wait (idle)", "(s per iteration)", "wall time (s)", "split"):
        assert words in text


def test_figure_has_bars_for_several_runs(tmp_path: Path) -> None:
    runs = [RecordedRun("one", {}, rows(1, "t", step=1e-4)), RecordedRun("two", {}, rows(2, "t", step=1e-4))]
    draw_timing(runs, tmp_path / "a.svg", "steps")
    text = (tmp_path / "a.svg").read_text()
    for words in ("one", "two", "mean time per iteration (ms)", "2.1 ms", "3.15 ms"):
        assert words in text


def test_long_times_are_plain_numbers(tmp_path: Path) -> None:
    draw_timing([RecordedRun("slow", {}, rows(1, "t", step=1000.0))], tmp_path / "a.svg", "steps")
    text = (tmp_path / "a.svg").read_text()
    assert "21,000 s" in text
    assert text.count(">20,000<") == 2  # on the axes of both panels
    assert "e+" not in text


@pytest.mark.parametrize(
    ("value", "text"),
    [(1960.4, "1,960"), (999.6, "1,000"), (123.4, "123"), (99.96, "100"), (3.151, "3.15"), (2.1, "2.1"), (2e-6, "0"), (0, "0")],
)  # fmt: skip
def test_numbers_have_no_exponent(value: float, text: str) -> None:
    assert plain_number(value) == text


def test_single_iteration_is_summarized(tmp_path: Path) -> None:
    draw_timing([RecordedRun("one", {}, rows(1, "t"))], tmp_path / "a.png", "steps")
    assert (tmp_path / "a.png").stat().st_size > 1000


def test_run_without_metrics_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="one: no data to plot: the run has no time metrics yet"):
        draw_timing([RecordedRun("one", {}, [{"env_steps": 1}])], tmp_path / "a.png", "steps")

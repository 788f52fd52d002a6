"""What the terminal shows while a run is trained."""

from pathlib import Path

import pytest

from lockstep.run import progress
from lockstep.run.folder import RunFolder
from lockstep.run.progress import Bar, display

METRICS = {
    "env_steps": 2000, "return_mean": 8.0, "return_mean_20": None, "fps": 1234.5, "approx_kl": 0.25, "entropy": None,
}  # fmt: skip


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "first", {"env": {"id": "CartPole-v1"}}, {})


def test_lines_are_complete_and_in_order(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (lines,) = display("lines", folder, 3)
    for iteration in (1, 2, 3):
        lines.write(METRICS | {"iteration": iteration})
    lines.flush()
    lines.close()
    rest = "steps 2,000  return 8  fps 1,234  kl 0.25  entropy -"
    assert capsys.readouterr().out.splitlines() == [f"iteration {iteration}/3  {rest}" for iteration in (1, 2, 3)]


def test_the_view_ends_with_the_last_state(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar(folder)
    for iteration in range(1, 901):
        bar.write(METRICS | {"iteration": iteration, "return_mean_20": float(iteration)})
        bar.flush()
    bar.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "return     900  best 900  ▁" in shown.err


def test_it_is_drawn_twice_a_second_at_most(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    now, drawn = [100.0], []
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    monkeypatch.setattr(progress.Screen, "show", lambda self, known, summary: drawn.append(now[0]))
    bar = Bar(folder)
    drawn.clear()
    for iteration in range(1, 81):
        now[0] += 0.0625
        bar.write(METRICS | {"iteration": iteration})
        bar.flush()
    bar.close()
    assert len(drawn) == 10 + 1  # and the end


def test_a_run_that_is_resumed_shows_what_came_before(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.path / "metrics.jsonl").write_text('{"iteration": 1, "return_mean_20": 77.0}\n')
    bar = Bar(folder)
    bar.write(METRICS | {"iteration": 2})
    bar.close()
    assert "return     8  best 77" in capsys.readouterr().err


def test_what_is_shown_where(folder: RunFolder) -> None:
    assert display("off", folder, 3) == []
    assert type(display("auto", folder, 3)[0]).__name__ == "Lines"  # here the output is piped

"""The HTML report of several runs, checked as text."""

import json
import re
from pathlib import Path

import pytest
from tests.report.test_page import EVIL, Page, make_run, rows

from lockstep.report import comparison
from lockstep.report import search as search_report
from lockstep.report.comparison import write_comparison
from lockstep.run.folder import RunFolder

pytest.importorskip("matplotlib", reason="pip install 'lockstep-rl[report]'")
pytest.importorskip("jinja2", reason="pip install 'lockstep-rl[report]'")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace figures by empty ones."""
    for module in (comparison, search_report):
        monkeypatch.setattr(module, "inline_figure", lambda draw, name: "<svg></svg>")


def runs(folder: Path) -> list[RunFolder]:
    """Three seeds of one experiment, with returns of 10, 20 and 60, and a run with another clip that has not finished."""
    found = [
        make_run(folder, f"wide-{seed}", rows(return_mean_20=mean), run={"seed": seed}, runtime={"compile": "off"})
        for seed, mean in ((1, 10.0), (2, 20.0), (3, 60.0))
    ]
    return [*found, make_run(folder, EVIL.replace("/", ""), rows(7), ppo={"clip": 0.1}, runtime={"compile": "on"})]


@pytest.mark.usefixtures("undrawn")
def test_results_over_seeds_and_differences(tmp_path: Path) -> None:
    folders = runs(tmp_path)
    (folders[0].path / "videos").mkdir()
    (folders[0].path / "videos/a b.mp4").write_bytes(b"")
    path = write_comparison(folders, tmp_path / "page.html", ["a", "b c"])
    parsed = Page(path)
    for words in (
        "4 runs",
        "3 seeds: wide-1, wide-2, wide-3",
        "3 30 [10, 60] 30 [10, 60]",  # n, mean and interquartile mean; three scores have no quarter to leave out
        "ppo.clip",
        "lowest to highest",
        "lockstep report a 'b c'",
    ):
        assert words in parsed.words, words
    assert "runtime.compile" not in parsed.words, "it was chosen automatically"
    assert "script" not in parsed.tags
    assert ("href", "wide-1/videos/a%20b.mp4") in parsed.attributes


@pytest.mark.usefixtures("undrawn")
def test_runs_that_differ_in_the_seed_alone_have_no_differences(tmp_path: Path) -> None:
    folders = [*runs(tmp_path)[:3], make_run(tmp_path, "new", "")]
    words = Page(write_comparison(folders, tmp_path / "page.html", ["a"])).words
    assert "Differences of the configs" not in words
    assert re.search(r"\bnew \d new 0 0 s – –", words), "a run without metrics is listed"


@pytest.mark.usefixtures("undrawn")
def test_a_run_with_a_repeated_seed_does_not_count(tmp_path: Path) -> None:
    unfinished = make_run(tmp_path, "begun", rows(7), run={"seed": 1})
    folders = [unfinished, *runs(tmp_path)[:2], make_run(tmp_path, "again", rows(return_mean_20=10.0), run={"seed": 1})]
    for folder in (unfinished, folders[3]):  # the config of the others has `compile`
        tree = folder.tree() | {"runtime": {"compile": "off"}}
        folder.rewrite(tree)
    words = Page(write_comparison(folders, tmp_path / "page.html", ["a"])).words
    assert "2 seeds: wide-1, wide-2 2 15 [10, 20]" in words
    assert (
        "Left out of results and curves: again (config and seed of wide-1), begun (config and seed of wide-1)." in words
    )
    alone = Page(write_comparison([folders[1], folders[3]], tmp_path / "page.html", ["a"])).words
    assert "There is one run per experiment, so nothing is known about other seeds." in alone
    assert "[10, 10]" not in alone


def test_figures_show_values_of_all_experiments(tmp_path: Path) -> None:
    text = write_comparison(runs(tmp_path), tmp_path / "page.html", ["a"]).read_text()
    assert "2,304 steps" in text
    assert "wide-1, wide-2, wide-3" in text
    assert "<script" not in text


def test_runs_of_two_environments_are_refused(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, "a"), make_run(tmp_path, "b", env={"id": "Pendulum-v1"})]
    with pytest.raises(ValueError, match=r"b of Pendulum-v1: runs of one environment only can be compared"):
        write_comparison(folders, tmp_path / "page.html", ["a"])
    with pytest.raises(ValueError, match="has no metrics yet"):
        write_comparison([make_run(tmp_path, "c", "")], tmp_path / "page.html", ["a"])
    assert not (tmp_path / "page.html").exists()


@pytest.mark.extra("optuna")
@pytest.mark.usefixtures("undrawn")
def test_a_search_shows_its_trials_and_the_command_of_the_best(tmp_path: Path) -> None:
    from lockstep.sweep.search import Trials
    from lockstep.sweep.values import read_search

    trials = Trials(tmp_path, read_search(["ppo.clip=float(0.1,0.3)"]), 1, {})
    for number, values in trials.next(6, 6):
        run = make_run(tmp_path / "runs", f"trial-{number:04d}", rows(3), ppo={"clip": float(values["ppo.clip"])})
        if number == 5:
            trials.report(number, 3, 7.125)
            trials.prune(number)
            run.mark_pruned("its return is low")
        else:
            trials.tell(number, None if number == 4 else 100.0 * float(values["ppo.clip"]))
    history = comparison.read_history(tmp_path).trials
    assert (history[5].state, history[5].score) == ("pruned", 7.125)
    scores = {trial.number: trial.score for trial in history[:5]}
    best = max((number for number in scores if scores[number] is not None), key=lambda number: scores[number])
    folders = [RunFolder(path.parent) for path in sorted(tmp_path.glob("runs/*/config.json"))]
    words = Page(write_comparison(folders, tmp_path / "report.html", ["found"], tmp_path)).words
    assert "6 runs (5 new, 1 pruned)" in words
    assert "7.125 pruned" in words
    assert f"Best of 6 trials: trial {best}, return {scores[best]:.4g}, with ppo.clip" in words
    assert "lockstep train cartpole" in words
    assert "ppo.clip 100%" in words
    assert "no result" in words
    (tmp_path / "trials.db").write_bytes(json.dumps("no database").encode())
    with pytest.raises(ValueError, match=r"trials\.db can't be read: "):
        write_comparison(folders, tmp_path / "report.html", ["found"], tmp_path)

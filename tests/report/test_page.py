"""The HTML report, checked as text; tests/cli/test_report.py opens one in a browser."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lockstep.config import VERSION
from lockstep.report import page
from lockstep.report.html import duration
from lockstep.run.folder import RunFolder

pytest.importorskip("matplotlib", reason="pip install 'lockstep-rl[report]'")
pytest.importorskip("jinja2", reason="pip install 'lockstep-rl[report]'")
EVIL = '<script src="https://example.org/x.js">alert(1)</script>'


class Page(HTMLParser):
    """Parsed page: its tags, attributes and visible text."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.text = path.read_text(encoding="utf-8")
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words = ""
        self.feed(self.text)
        self.words = " ".join(self.words.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.words += " " if tag in ("td", "th", "dd", "small", "br") else ""
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.words += data


def rows(count: int = 30, **more: Any) -> str:
    lines = [
        {
            "iteration": number,
            "env_steps": 256 * number,
            "seconds": 0.5 * number,
            **{f"t_{name}": 0.1 for name in ("iter", "rollout", "learn", "sync", "wait", "publish", "record")},
            **dict.fromkeys(("policy_loss", "value_loss", "entropy", "approx_kl"), 0.1 * number),
            "return_mean": float(number),
            "return_mean_20": float(number) if number > 3 else None,
            "digest": f"{number:064x}",
            **more,
        }
        for number in range(1, count + 1)
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def make_run(folder: Path, name: str = "run", metrics: str | None = None, **sections: Any) -> RunFolder:
    tree = {
        "version": VERSION,
        "rollout": {"steps": 128},
        **sections,
        "run": {"total_steps": 30 * 1024, **sections.get("run", {})},
    }
    run = RunFolder.create(folder / name, tree, {"preset": "cartpole", "ranks": 1, "packages": {"torch": "9.9"}})
    (run.path / "metrics.jsonl").write_text(rows() if metrics is None else metrics)
    return run


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace figures by empty ones: figures take most of the time, and many tests do not need them."""
    monkeypatch.setattr(page, "inline_figure", lambda draw, name: "<svg></svg>")


def read(folder: RunFolder) -> Page:
    path = page.write_report(folder)
    assert path == folder.path / "report.html"
    assert [file for file in folder.path.iterdir() if file.name.startswith(".")] == []
    return Page(path)


@pytest.mark.usefixtures("undrawn")
def test_the_text_of_the_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path, run={"solved_return": 20, "name": "run"}, ppo={"clip": 0.1})
    state = {"last_returns": [20.0, 40.0] * 10}
    folder.checkpoint(30).mkdir(parents=True)
    (folder.checkpoint(30) / "state.json").write_text(json.dumps(state))
    parsed = read(folder)
    for words in (
        "preset cartpole",
        "Finished: all 30 iterations are done.",
        "reached 20 after 5,120 steps and 10 s, in iteration 20.",
        "30 ± 4.497",
        "Expected result of the preset: mean return of 475 over the last 20 episodes",
        "none create one with lockstep eval",
        "No video yet. Record one with lockstep play",
        "rank 0 (plays and trains): 600 ms per iteration",
        "lockstep train cartpole --rollout.steps 128",
        "--ppo.clip 0.1",
        f"{30:064x}",
        "torch 9.9",
    ):
        assert words in parsed.words, words
    (folder.path / "evaluation.json").write_text(
        json.dumps({"iteration": 30, "digest": "", "actions": "drawn", "returns": [1, 3], "lengths": [1, 1]})
    )
    assert "2 ± 1.96 2 episodes that were not used for training, drawn actions, iteration 30" in read(folder).words
    (folder.path / "evaluation-sampled.json").write_text(
        json.dumps({"iteration": 29, "digest": "", "actions": "drawn", "returns": [4, 6], "lengths": [1, 1]})
    )
    words = read(folder).words
    expected = "2 ± 1.96 2 episodes that were not used for training, drawn actions, iteration 30, 95% interval 5 ± 1.96"
    assert expected in words
    assert "drawn actions, iteration 29, 95% interval" in words


@pytest.mark.usefixtures("undrawn")
def test_a_pruned_run_says_so(tmp_path: Path) -> None:
    folder = make_run(tmp_path, metrics=rows(9))
    folder.mark_pruned("return 7 <is> low")
    assert "Pruned by its search after 9 of 30 iterations: return 7 <is> low." in read(folder).words


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("goal", "hook", "reason"),
    [
        (7.5, False, "because run.stop_at_return (7.5) was reached."),
        (7.5, True, "ended by a hook."),
        (None, True, "ended by a hook."),
        (None, False, "ended by run.stop_at_return or a hook."),
    ],
)
def test_a_run_that_ended_before_its_budget_was_used_up_says_why(
    goal: float | None, hook: bool, reason: str, tmp_path: Path
) -> None:
    folder = make_run(tmp_path, metrics=rows(9), run={"stop_at_return": goal})
    folder.checkpoint(9).mkdir(parents=True)
    (folder.checkpoint(9) / "state.json").write_text(json.dumps({"complete": True, "hook_stops": hook}))
    assert f"Finished after 9 of 30 iterations, {reason}" in read(folder).words


@pytest.mark.usefixtures("undrawn")
def test_the_last_and_the_best_evaluation_during_training(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    assert "evaluation during training" not in read(folder).words
    rows = [
        {"iteration": number, "env_steps": 256 * number, "seconds": 1.0, "episodes": 5, "return_mean": mean, "sampled_return_mean": mean - 1}
        for number, mean in ((10, 90.0), (20, 70.0))
    ]  # fmt: skip
    (folder.path / "evaluations.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (folder.path / "best.json").write_text('{"iteration": 10, "return_mean": 90.0, "episodes": 5}')
    words = read(folder).words
    assert "Last evaluation during training 70 sampled 69; iteration 20, 5 episodes each" in words
    assert "Best evaluation during training 90 sampled 89; iteration 10, 5 episodes each" in words


def test_the_page_loads_nothing_and_contains_no_script(tmp_path: Path) -> None:
    folder = make_run(tmp_path, '<b>bold & $x_1$ "quoted"', env={"id": EVIL}, curiosity={"kind": "rnd"})
    (folder.path / "environment.json").write_text(json.dumps({"host": EVIL, "packages": {EVIL: EVIL}, "git": "g"}))
    parsed = read(folder)
    assert "script" not in parsed.tags
    assert "b" not in parsed.tags
    assert parsed.words.count(EVIL) >= 4
    assert '<b>bold & $x_1$ "quoted"' in parsed.words
    fetched = {
        value for name, value in parsed.attributes if name in ("src", "href", "srcset", "data", "action", "poster")
    }
    assert fetched == {"data:,"}
    linked = [value for name, value in parsed.attributes if name == "xlink:href"]
    assert all(str(value).startswith("#") for value in linked)
    assert set(re.findall(r"url\((.)", parsed.text)) == {"#"}
    ids = [value for name, value in parsed.attributes if name == "id"]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    assert {str(value)[1:] for value in linked} <= set(ids)
    assert set(re.findall(r"url\(#(.*?)\)", parsed.text)) <= set(ids)


def test_figures_use_the_colors_of_the_page(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    text = read(folder).text
    assert read(folder).text == text
    assert text.count("<svg") == 8
    alt = "Entropy over environment steps (nats): from 0.1 to 3, at least 0.1, at most 3"
    assert f'aria-label="{alt}"' in text
    for words in (">last 20 episodes</text>", ">advantages, no unit</text>", ">rank 0</text>"):
        assert words in text, words
    drawn = text[text.index("</style>") :]
    assert re.findall(r"#[0-9a-f]{6}\b", "".join(re.findall(r"<svg.*?</svg>", drawn, re.DOTALL))) == []
    assert 'x="' in re.findall(r'<g class="tip">.*?</g>', text)[0]
    assert ">7,680 steps</tspan>" in text
    assert "</tspan> last 20 episodes 30</tspan>" in text
    known = set(re.findall(r"(--[a-z0-9-]+):", text[: text.index("</style>")]))
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", text)) <= known


def test_contrast_of_text_and_lines() -> None:
    """WCAG 2.2 requires a contrast of at least 4.5 for text (1.4.3) and of at least 3 for meaningful lines (1.4.11)."""
    text = (Path(page.__file__).parent / "base.html").read_text()
    for theme in re.findall(r":root \{(.*?)\}", text, re.DOTALL):
        colors = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]+)", theme))
        for name in ("ink", "muted", "link", "good", "warn"):
            assert min(contrast(colors[name], colors[background]) for background in ("paper", "card")) >= 4.5, name
        assert contrast(colors["series-0"], colors["paper"]) >= 3
        assert contrast(colors["series-1"], colors["paper"]) >= 3


def contrast(first: str, second: str) -> float:
    darker, lighter = sorted(map(luminance, (first, second)))
    return (lighter + 0.05) / (darker + 0.05)


def luminance(color: str) -> float:
    digits = color[1:] if len(color) == 7 else "".join(2 * digit for digit in color[1:])
    parts = [int(digits[start : start + 2], 16) / 255 for start in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.usefixtures("undrawn")
def test_page_of_a_run_without_iterations(tmp_path: Path) -> None:
    metrics = '{"iteration": 1, "env_steps": 1024, "policy_loss": 1, "return_mean": 5}\n{"iteration": 2, "env_st'
    parsed = read(make_run(tmp_path, metrics=metrics, run={"solved_return": 20}))
    for words in (
        "Stopped after 1 of 30 iterations.",
        "Not solved yet: fewer than 20 episodes have ended; the target return is 20.",
        "Policy loss over environment steps",
        "newest checkpoint none",
    ):
        assert words in parsed.words, words


@pytest.mark.usefixtures("undrawn")
def test_long_phases_are_plain_numbers(tmp_path: Path) -> None:
    words = read(make_run(tmp_path, metrics=rows(3, t_iter=12.5, t_rollout=1.9604, t_learn=10.0))).words
    assert "collecting rollouts 1,960 15.9%" in words
    assert "e+0" not in words


@pytest.mark.usefixtures("undrawn")
def test_page_lists_starts_and_failures(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    assert "Starts and failures" not in read(folder).words
    start = {"event": "start", "last": 30, "ranks": 2, "plan": "coupled", "host": EVIL, "packages": {"torch": "9.9"}}
    end = {"event": "end", "time": "2026-01-01T10:02:05+00:00", "iteration": 8}
    begun = [{**start, "time": "2026-01-01T10:00:00+00:00", "iteration": number} for number in (0, 5, 8)]
    begun[1]["packages"] = {"torch": "9.10"}
    entries = [
        begun[0],
        begun[1],
        {**end, "how": "stopped", "why": "SIGTERM"},
        begun[2],
        {**end, "how": "failed", "why": EVIL},
    ]
    (folder.path / "starts.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in entries))
    parsed = read(folder)
    for words in (
        "Started 3 times; 2 failed.",
        "2026-01-01 10:00:00 0 2 ranks, coupled, on <script",
        "? of 30 ? killed: no end was recorded",
        "8 of 30 2 min 5 s stopped by SIGTERM changed packages: torch 9.9 → 9.10",
        f"failed: {EVIL} changed packages: torch 9.10 → 9.9",
    ):
        assert words in parsed.words, words
    assert "script" not in parsed.tags


@pytest.mark.usefixtures("undrawn")
def test_page_of_a_run_without_curves(tmp_path: Path) -> None:
    parsed = read(make_run(tmp_path, metrics='{"iteration": 1}\n'))
    assert "No data yet." in parsed.words
    assert "svg" not in parsed.tags


@pytest.mark.usefixtures("undrawn")
def test_page_of_a_running_run_below_its_goal(tmp_path: Path) -> None:
    folder = make_run(tmp_path, run={"solved_return": 99, "total_steps": 99 * 1024})
    folder.lock()
    words = read(folder).words
    assert "Running: 30 of 99 iterations were done" in words
    assert "did not reach 99; the best was 30." in words


@pytest.mark.usefixtures("undrawn")
def test_page_shows_the_newest_video(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    folder = make_run(tmp_path)
    (folder.path / "videos").mkdir()
    for name, time in (("old.mp4", 100), ("new.mp4", 200)):
        path = folder.path / "videos" / name
        path.write_bytes(name.encode())
        os.utime(path, (time, time))
    parsed = read(folder)
    assert ("src", "data:video/mp4;base64,bmV3Lm1wNA==") in parsed.attributes
    assert "new.mp4" in parsed.words
    monkeypatch.setattr(page, "_LARGEST_VIDEO", 3)
    parsed = read(folder)
    assert "video" not in parsed.tags
    assert re.search(
        r"The newest video, \S*/videos/new\.mp4, has \S+ MB, which is too large for this page", parsed.words
    )


@pytest.mark.usefixtures("undrawn")
def test_errors_are_reported_in_one_line(tmp_path: Path) -> None:
    empty = make_run(tmp_path, metrics="")
    with pytest.raises(ValueError, match="has no metrics yet: no report can be written"):
        page.write_report(empty)
    broken = make_run(tmp_path, "broken")
    (broken.path / "environment.json").write_text("{")
    with pytest.raises(ValueError, match=r"environment\.json can't be read"):
        page.write_report(broken)
    unwritable = make_run(tmp_path, "taken")
    (unwritable.path / "report.html").mkdir()
    with pytest.raises(ValueError, match=r"report\.html cannot be written: Is a directory"):
        page.write_report(unwritable)
    assert [path for path in tmp_path.rglob("*") if "report" in path.name or "partial" in path.name] == [
        unwritable.path / "report.html"
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "0.5 s"), (59.94, "59.9 s"), (125, "2 min 5 s"), (7320, "2 h 2 min"), (59.99, "1 min 0 s")],
)
def test_durations_in_words(seconds: float, words: str) -> None:
    assert duration(seconds) == words

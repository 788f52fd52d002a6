"""The report as a page, looked at as text; tests/cli/test_report.py opens one in a browser."""

import json
import re
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from lockstep.report import page
from lockstep.run.folder import RunFolder

pytest.importorskip("matplotlib", reason="pip install 'lockstep-rl[report]'")
pytest.importorskip("jinja2", reason="pip install 'lockstep-rl[report]'")
EVIL = '<script src="https://example.org/x.js">alert(1)</script>'


class Page(HTMLParser):
    """What is in a page."""

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


def made(folder: Path, name: str = "run", metrics: str | None = None, **sections: Any) -> RunFolder:
    tree = {"version": 1, **sections, "run": {"total_steps": 30 * 1024, **sections.get("run", {})}}
    found = RunFolder.create(folder / name, tree, {"preset": "cartpole", "ranks": 1, "packages": {"torch": "9.9"}})
    (found.path / "metrics.jsonl").write_text(rows() if metrics is None else metrics)
    return found


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures take most of the time, and many tests look at none."""
    monkeypatch.setattr(page, "inline_picture", lambda draw, name: "<svg></svg>")


def read(folder: RunFolder) -> Page:
    path = page.write_report(folder)
    assert path == folder.path / "report.html"
    assert [left for left in folder.path.iterdir() if left.name.startswith(".")] == []
    return Page(path)


@pytest.mark.usefixtures("undrawn")
def test_what_it_says(tmp_path: Path) -> None:
    folder = made(tmp_path, run={"solved_return": 20, "name": "run"}, ppo={"clip": 0.1})
    state = {"last_returns": [20.0, 40.0] * 10}
    folder.checkpoint(30).mkdir(parents=True)
    (folder.checkpoint(30) / "state.json").write_text(json.dumps(state))
    found = read(folder)
    for words in (
        "preset cartpole",
        "Finished: all 30 iterations are done.",
        "reached 20 after 5,120 steps and 10 s, in iteration 20.",
        "30 ± 4.497",
        "The preset expects: mean return of 475 over the last 20 episodes",
        "none yet: lockstep eval",
        "There is none yet: lockstep play",
        "rank 0 (plays and trains): 600 ms per iteration",
        "lockstep train cartpole --rollout.steps 128",
        "--ppo.clip 0.1",
        f"{30:064x}",
        "torch 9.9",
    ):
        assert words in found.words, words
    (folder.path / "evaluation.json").write_text(
        json.dumps({"iteration": 30, "digest": "", "actions": "drawn", "returns": [1, 3], "lengths": [1, 1]})
    )
    assert "2 ± 1.96 2 episodes that training never saw, drawn actions, iteration 30" in read(folder).words
    (folder.path / "evaluation-sampled.json").write_text(
        json.dumps({"iteration": 29, "digest": "", "actions": "drawn", "returns": [4, 6], "lengths": [1, 1]})
    )
    words = read(folder).words
    assert "2 ± 1.96 2 episodes that training never saw, drawn actions, iteration 30, 95% interval 5 ± 1.96" in words
    assert "drawn actions, iteration 29, 95% interval" in words


def test_nothing_is_asked_for_and_nothing_runs(tmp_path: Path) -> None:
    folder = made(tmp_path, '<b>bold & $x_1$ "quoted"', env={"id": EVIL}, curiosity={"kind": "rnd"})
    (folder.path / "environment.json").write_text(json.dumps({"host": EVIL, "packages": {EVIL: EVIL}, "git": "g"}))
    found = read(folder)
    assert "script" not in found.tags
    assert "b" not in found.tags
    assert found.words.count(EVIL) >= 4
    assert '<b>bold & $x_1$ "quoted"' in found.words
    fetched = {
        value for name, value in found.attributes if name in ("src", "href", "srcset", "data", "action", "poster")
    }
    assert fetched == {"data:,"}
    linked = [value for name, value in found.attributes if name == "xlink:href"]
    assert all(str(value).startswith("#") for value in linked)
    assert set(re.findall(r"url\((.)", found.text)) == {"#"}
    ids = [value for name, value in found.attributes if name == "id"]
    assert [name for name, count in Counter(ids).items() if count > 1] == []
    assert {str(value)[1:] for value in linked} <= set(ids)
    assert set(re.findall(r"url\(#(.*?)\)", found.text)) <= set(ids)


def test_pictures_are_the_pages_own(tmp_path: Path) -> None:
    folder = made(tmp_path)
    text = read(folder).text
    assert read(folder).text == text
    assert text.count("<svg") == 7
    alt = "Entropy over environment steps (nats): from 0.1 to 3, at least 0.1, at most 3"
    assert f'aria-label="{alt}"' in text
    for words in (">last 20 episodes</text>", ">policy loss</text>", ">rank 0</text>"):
        assert words in text, words
    drawn = text[text.index("</style>") :]
    assert re.findall(r"#[0-9a-f]{6}\b", "".join(re.findall(r"<svg.*?</svg>", drawn, re.DOTALL))) == []
    known = set(re.findall(r"(--[a-z0-9-]+):", text[: text.index("</style>")]))
    assert set(re.findall(r"var\((--[a-z0-9-]+)\)", text)) <= known


def test_text_can_be_read() -> None:
    """WCAG 2.2, 1.4.3: a contrast of at least 4.5 for text, and 1.4.11: 3 for lines that mean something."""
    text = (Path(page.__file__).parent / "page.html").read_text()
    for theme in re.findall(r":root \{(.*?)\}", text, re.DOTALL):
        colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]+)", theme))
        for name in ("ink", "muted", "link", "good", "warn"):
            assert min(contrast(colours[name], colours[ground]) for ground in ("paper", "card")) >= 4.5, name
        assert contrast(colours["series-0"], colours["paper"]) >= 3
        assert contrast(colours["series-1"], colours["paper"]) >= 3


def contrast(one: str, other: str) -> float:
    least, most = sorted(map(luminance, (one, other)))
    return (most + 0.05) / (least + 0.05)


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    parts = [int(digits[place : place + 2], 16) / 255 for place in (0, 2, 4)]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    metrics = '{"iteration": 1, "env_steps": 1024, "policy_loss": 1, "return_mean": 5}\n{"iteration": 2, "env_st'
    found = read(made(tmp_path, metrics=metrics, run={"solved_return": 20}))
    for words in (
        "Stopped after 1 of 30 iterations.",
        "Not solved yet: fewer than 20 episodes have ended; 20 is to be reached.",
        "Policy loss over environment steps",
        "newest checkpoint there is none",
    ):
        assert words in found.words, words


@pytest.mark.usefixtures("undrawn")
def test_long_phases_are_plain_numbers(tmp_path: Path) -> None:
    words = read(made(tmp_path, metrics=rows(3, t_iter=12.5, t_rollout=1.9604, t_learn=10.0))).words
    assert "collecting 1,960 15.9%" in words
    assert "e+0" not in words


@pytest.mark.usefixtures("undrawn")
def test_starts_and_faults(tmp_path: Path) -> None:
    folder = made(tmp_path)
    assert "Starts and faults" not in read(folder).words
    start = {"event": "start", "last": 30, "ranks": 2, "plan": "coupled", "host": EVIL, "packages": {"torch": "9.9"}}
    end = {"event": "end", "time": "2026-01-01T10:02:05+00:00", "iteration": 8}
    begun = [{**start, "time": "2026-01-01T10:00:00+00:00", "iteration": number} for number in (0, 5, 8)]
    begun[1]["packages"] = {"torch": "9.10"}
    noted = [
        begun[0],
        begun[1],
        {**end, "how": "stopped", "why": "SIGTERM"},
        begun[2],
        {**end, "how": "failed", "why": EVIL},
    ]
    (folder.path / "starts.jsonl").write_text("".join(f"{json.dumps(entry)}\n" for entry in noted))
    found = read(folder)
    for words in (
        "Started 3 times; 2 of 3 ended with a fault.",
        "2026-01-01 10:00:00 0 2 ranks, coupled, on <script",
        "? of 30 ? killed: it left no word",
        "8 of 30 2 min 5 s stopped by SIGTERM installed anew: torch 9.9 → 9.10",
        f"failed: {EVIL} installed anew: torch 9.10 → 9.9",
    ):
        assert words in found.words, words
    assert "script" not in found.tags


@pytest.mark.usefixtures("undrawn")
def test_a_run_without_anything_to_draw(tmp_path: Path) -> None:
    found = read(made(tmp_path, metrics='{"iteration": 1}\n'))
    assert "There is nothing to draw yet." in found.words
    assert "svg" not in found.tags


@pytest.mark.usefixtures("undrawn")
def test_a_run_that_goes_on_did_not_reach_its_goal(tmp_path: Path) -> None:
    folder = made(tmp_path, run={"solved_return": 99, "total_steps": 99 * 1024})
    folder.lock()
    words = read(folder).words
    assert "Running: 30 of 99 iterations were done" in words
    assert "did not reach 99; at best it was 30." in words


@pytest.mark.usefixtures("undrawn")
def test_the_newest_film(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    folder = made(tmp_path)
    (folder.path / "videos").mkdir()
    for name, time in (("old.mp4", 100), ("new.mp4", 200)):
        path = folder.path / "videos" / name
        path.write_bytes(name.encode())
        os.utime(path, (time, time))
    found = read(folder)
    assert ("src", "data:video/mp4;base64,bmV3Lm1wNA==") in found.attributes
    assert "new.mp4" in found.words
    monkeypatch.setattr(page, "_LARGEST_FILM", 3)
    found = read(folder)
    assert "video" not in found.tags
    assert re.search(r"The newest, \S*/videos/new\.mp4, has \S+ MB: too much for this page", found.words)


@pytest.mark.usefixtures("undrawn")
def test_what_cant_be_reported_gets_one_line(tmp_path: Path) -> None:
    empty = made(tmp_path, metrics="")
    with pytest.raises(ValueError, match="has no metrics yet, so there is nothing to report"):
        page.write_report(empty)
    broken = made(tmp_path, "broken")
    (broken.path / "environment.json").write_text("{")
    with pytest.raises(ValueError, match=r"environment\.json can't be read"):
        page.write_report(broken)
    taken = made(tmp_path, "taken")
    (taken.path / "report.html").mkdir()
    with pytest.raises(ValueError, match=r"report\.html can't be written \(Is a directory\)"):
        page.write_report(taken)
    assert [path for path in tmp_path.rglob("*") if "report" in path.name or "partial" in path.name] == [
        taken.path / "report.html"
    ]


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.5, "0.5 s"), (59.94, "59.9 s"), (125, "2 min 5 s"), (7320, "2 h 2 min"), (59.99, "1 min 0 s")],
)
def test_durations(seconds: float, words: str) -> None:
    assert page._duration(seconds) == words

"""`lockstep report` on short runs, and its page in a browser."""

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli.main import main

pytest.importorskip("matplotlib", reason="pip install 'lockstep-rl[report]'")
pytest.importorskip("jinja2", reason="pip install 'lockstep-rl[report]'")
NAME = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def trained(run_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder whose `runs/` holds a short run of CartPole."""
    folder = tmp_path_factory.mktemp("trained")
    short = ("--total-steps", "4000", "--run.checkpoint-every", "5", "--ppo.clip", "0.1", "--ranks", "1")
    short = (*short, "--rollout.steps", "32", "--ppo.minibatches", "1")
    run_in(folder, "train", "cartpole", *short, "--name", "first")
    return folder


@pytest.fixture
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with a copy of this run."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["report", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_report_is_written(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "first", "--episodes", "3"]) == 0
    capsys.readouterr()
    assert output(capsys, "first") == (0, "runs/first/report.html\n", "")
    text = (here / "runs/first/report.html").read_text()
    assert "lockstep play runs/first --video" in text
    assert "3 episodes that were not used for training, most probable actions, iteration 15" in text


@pytest.mark.usefixtures("here")
def test_documented_program_writes_a_report(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = re.search(r"```python\n(.*?)```", (root / "docs/reports.md").read_text(), re.DOTALL)
    assert code is not None
    Path("program.py").write_text(code[1])
    runpy.run_path("program.py")
    output_text = capsys.readouterr().out
    assert output_text.startswith("runs/first/report.html\nfinished ReturnMilestone(value=")
    assert output_text.rstrip().endswith("--ranks 1")


def test_several_runs_and_the_folder_of_a_sweep_are_compared(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree("runs/first", "runs/rates/runs/one")
    config = json.loads(Path("runs/rates/runs/one/config.json").read_text())
    config["run"]["seed"] = 2
    Path("runs/rates/runs/one/config.json").write_text(json.dumps(config))
    assert output(capsys, "first", "runs/rates/runs/one") == (0, "runs/first/report-compared.html\n", "")
    text = (here / "runs/first/report-compared.html").read_text()
    assert "2 seeds: first, one" in text
    assert "<script" not in text
    assert output(capsys, "rates")[2].startswith(
        "lockstep: runs/rates is not a run: it holds no config.json; it holds runs"
    )
    Path("runs/rates/logs").mkdir()
    Path("runs/rates/logs/one.log").touch()
    assert output(capsys, "rates") == (0, "runs/rates/report.html\n", "")
    assert output(capsys, "first", "rates", "--out", "new/both.html") == (0, "new/both.html\n", "")
    assert "2 seeds: first, one" in (here / "new/both.html").read_text()


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("first --out a.pdf", "--out is a.pdf: it must end in .html"),
        ("two", "'two': there is no such run; runs/ holds bare, cut, first"),
        ("", "RUN is missing; see lockstep report --help"),
        ("first --episodes 3", "--episodes: unknown flag; see lockstep report --help"),
        (".", ". is not a run: it holds no config.json; it holds runs, such as runs/bare"),
        ("bare", "runs/bare has no metrics yet: no report can be written"),
        ("cut", "runs/cut has no metrics yet: no report can be written"),
    ],
)
def test_invalid_requests_are_reported_in_one_line(
    words: str, line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, metrics in (("bare", None), ("cut", '{"iteration": 1, "env_st')):
        (here / "runs" / name).mkdir()
        shutil.copy("runs/first/config.json", f"runs/{name}/config.json")
        if metrics is not None:
            (here / f"runs/{name}/metrics.jsonl").write_text(metrics)
    before = sorted(here.rglob("*"))
    assert output(capsys, *words.split()) == (2, "", f"lockstep: {line}\n")
    assert sorted(here.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.extra("selenium", "imageio_ffmpeg", "pygame")
@pytest.mark.command("chromium", "chromedriver")
def test_report_renders_in_a_browser(here: Path, browser: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["play", "first", "--video"]) == 0
    (here / "runs/first").rename(here / NAME)
    capsys.readouterr()
    assert output(capsys, f"./{NAME}")[:2] == (0, f"{NAME}/report.html\n")
    (here / "alone").mkdir()
    path = (here / NAME / "report.html").rename(here / "alone/page.html")  # with nothing beside it
    grounds = set()
    for theme in ("light", "dark"):
        for width in (360, 1400):
            show(browser, path, theme, width)
            assert ask(browser, "document.documentElement.scrollWidth") <= width
            assert ask(browser, WIDEST) <= width
            assert ask(browser, "document.querySelector('h1').textContent") == NAME
            sizes = ask(browser, "[...document.querySelectorAll('svg')].map(e => e.getBoundingClientRect().height)")
            assert len(sizes) == 12
            assert sorted(sizes)[0] == 0, "the figure for the other width"
            assert sorted(sizes)[1] > 150
            grounds.add(ask(browser, "getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2
    assert ask(browser, VIDEO) == [None, 600]
    assert {url.partition(":")[0] for url in requests(browser)} == {"file", "data"}
    assert [entry["message"] for entry in browser.get_log("browser")] == []


WIDEST = (
    "Math.max(...[...document.querySelectorAll('body *')].map(e => Math.ceil(e.getBoundingClientRect().right - 0.5)))"
)
VIDEO = "(e => [e.error, e.videoWidth])(document.querySelector('video'))"


def show(browser: Any, path: Path, theme: str, width: int) -> None:
    from selenium.webdriver.support.ui import WebDriverWait

    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    browser.get(path.as_uri())
    ask(browser, "document.querySelectorAll('details').forEach(e => e.open = true)")
    WebDriverWait(browser, 60).until(lambda _: ask(browser, "document.querySelector('video').readyState") >= 1)


def ask(browser: Any, expression: str) -> Any:
    return browser.execute_script(f"return {expression}")


def requests(browser: Any) -> list[str]:
    """URLs that the page requested, including the page itself."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]

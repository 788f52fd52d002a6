"""`lockstep dashboard`: the command, and its page in a browser while a run trains."""

import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.live_runs import wait_for

from lockstep.cli.main import main

pytest.importorskip("starlette", reason="pip install 'lockstep-rl[dashboard]'")
HOOK = """
from pathlib import Path

def on_iteration(iteration):
    if Path("enough").exists():
        iteration.stop()
"""
SMALL = ("--env.count", 2, "--plan.shards", 1, "--rollout.steps", 16, "--ppo.epochs", 1, "--ppo.minibatches", 1)
TRAIN = (
    "train",
    "cartpole",
    *SMALL,
    "--total-steps",
    10**7,
    "--run.hooks",
    "hook",
    "--run.progress",
    "off",
    "--runtime.compile",
    "off",
)


@pytest.fixture
def dashboard(begin: Callable[..., Any], tmp_path: Path) -> tuple[Any, str]:
    """Process and address of a dashboard of the empty folder `runs`."""
    process = begin("dashboard", "--port", 0)
    address = process.stdout.readline().strip()
    assert process.stdout.readline() == "Open this address in a browser; Ctrl-C ends the dashboard.\n"
    return process, address


def test_dashboard_serves_this_machine_only_and_ends_with_ctrl_c(dashboard: tuple[Any, str], tmp_path: Path) -> None:
    process, address = dashboard
    match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=[\w-]{32}", address)
    assert match
    with urllib.request.urlopen(address) as page:
        assert b"lockstep dashboard" in page.read()
    listening = Path("/proc/net/tcp").read_text().splitlines()
    assert [line.split()[1] for line in listening if f":{int(match[1]):04X} 00000000" in line] == [
        f"0100007F:{int(match[1]):04X}"
    ]
    kept = socket.create_connection(("127.0.0.1", int(match[1])))  # an open connection must not delay the end
    os.killpg(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=60)
    kept.close()
    assert (process.returncode, stdout, stderr) == (0, "\n", "")
    assert not list(tmp_path.iterdir())


def test_bad_input_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").touch()
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        for words, line in (
            (["nowhere"], "nowhere: there is no such folder"),
            ([str(tmp_path)], f"{tmp_path} is a run: name the folder that holds it"),
            (["--port", "x"], "--port is 'x': it must be a whole number, at least 0"),
            (["--port", "70000"], "--port is 70000: it must be from 0 to 65535; 0 selects a free port"),
            (["--port", str(port)], f"--port is {port}: Address already in use; --port 0 selects a free port"),
        ):
            assert main(["dashboard", *words]) == 2
            assert capsys.readouterr() == ("", f"lockstep: {line}\n")


@pytest.mark.slow
@pytest.mark.extra("selenium")
@pytest.mark.command("chromium", "chromedriver")
def test_page_follows_a_run_from_its_start_to_its_end(
    dashboard: tuple[Any, str], browser: Any, begin: Callable[..., "subprocess.Popen[str]"], tmp_path: Path
) -> None:
    process, address = dashboard
    browser.get(address)
    wait_for(lambda: ask(browser, "document.getElementById('none').checkVisibility()"), "the hint of what to type")
    assert ask(browser, "document.getElementById('start').textContent") == "lockstep train cartpole"
    (tmp_path / "hook.py").write_text(HOOK)
    begin(*TRAIN, "--name", "live")
    wait_for(lambda: state(browser) == ["live", "running"], "the running run")
    wait_for(lambda: points(browser) > 0, "the first points")
    before = points(browser)
    wait_for(lambda: points(browser) > before, "more points")
    assert drawn(browser)
    spans = "[[1, 99], [0.01, null, 1], [0, 1]].map(y => spansDecades([{y}]))"
    assert ask(browser, spans) == [False, True, False]
    # last, two drawings in one task: uPlot computes its ranges after the task, also those of the first
    drawings = ([[0.01, 5]], [[1, 5]], [[0.01, None, 5]], [[0.01, 5], [0.1, 5]])
    drawn_as = [browser.execute_script(DRAW, lists) for lists in drawings]
    assert [kind for kind, *_ in drawn_as] == [3, 1, 3, 1]
    assert drawn_as[2][1:] == pytest.approx([0.01 / 1.5, 5 * 1.5])
    # uPlot's own function of the numbers of an axis never ends with this range
    assert browser.execute_script(DRAW, [[1.4470494344078421e-15, 1e-11]])[0] == 3
    assert ask(browser, "logarithmicTicks(9.5e-16, 2e-14)") == [
        *(float(f"{n}e-15") for n in range(1, 10)),
        1e-14,
        2e-14,
    ]
    (tmp_path / "enough").touch()
    wait_for(lambda: state(browser) == ["live", "done"], "the end of the run")
    # the hook ended it long before its ten million steps
    assert int(ask(browser, "document.querySelector('#rows .steps').textContent").rstrip("%").split()[-1]) < 100
    fits(browser)
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=60)
    wait_for(lambda: "does not answer" in ask(browser, "document.getElementById('connection').textContent"), "a note")


DRAW = """
const chart = document.querySelector('[data-metric=value_loss] .plot').chart;
for (const y of arguments[0]) {
  chart.series = [{ ...chart.series[0], x: y.map((_, place) => place), y, low: null, high: null }];
  chart.draw();
}
return [chart.uplot.scales.y.distr, ...chart.vertical(true)];
"""
"""Draws lists of value losses, and returns uPlot's number of the kind of axis of the last, 1 linear or 3 logarithmic, and the range of a logarithmic axis."""


def ask(browser: Any, expression: str) -> Any:
    return browser.execute_script(f"return {expression}")


def state(browser: Any) -> list[str]:
    """Name and state of the only run; empty without one."""
    return ask(browser, "[...document.querySelectorAll('#rows label, #rows .state')].map(e => e.textContent)")


def points(browser: Any) -> int:
    """Number of points of the value loss."""
    return int(ask(browser, "document.querySelector('[data-metric=value_loss]')?.dataset.points ?? 0"))


def drawn(browser: Any) -> bool:
    """Return True if the canvas of the value loss has pixels in the color of the first series."""
    return ask(
        browser,
        """(canvas => {
            const data = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data;
            for (let i = 0; i < data.length; i += 4)
                if (data[i] === 0 && data[i + 1] === 0x72 && data[i + 2] === 0xb2 && data[i + 3] === 255) return true;
            return false;
        })(document.querySelector('[data-metric=value_loss] canvas'))""",
    )


def fits(browser: Any) -> None:
    """Check that nothing is wider than the page, at two widths and in both themes."""
    grounds = set()
    for theme in ("light", "dark"):
        for width in (400, 1280):
            metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
            features = [{"name": "prefers-color-scheme", "value": theme}]
            browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
            # plots are drawn again after the page has changed its width
            wait_for(lambda: ask(browser, "document.documentElement.scrollWidth") <= width, f"the width {width}")  # noqa: B023
            grounds.add(ask(browser, "getComputedStyle(document.body).backgroundColor"))
    assert len(grounds) == 2

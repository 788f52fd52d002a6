"""The progress display of a run that is being trained."""

import builtins
import fcntl
import json
import math
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest

import lockstep
from lockstep.run.folder import RunFolder
from lockstep.run.settings import RunConfig
from lockstep.telemetry import progress
from lockstep.telemetry.progress import Bar, Lines, display

METRICS = {
    "env_steps": 2000, "episodes": 2, "return_mean": 8.0, "return_mean_20": None, "fps": 1234.5, "t_iter": 2.0, "approx_kl": 0.25,
}  # fmt: skip

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
DRAW = """
import os
import sys
from pathlib import Path
from lockstep.run.folder import RunFolder
from lockstep.telemetry.progress import Screen
from lockstep.telemetry.screen import read_run_facts
from lockstep.telemetry.status import RunStatus

screen, status = Screen(), RunStatus()
status.append({"iteration": 5, "env_steps": 2000, "approx_kl": 0.25, "entropy": 1.0, "explained_variance": 0.5})
for _ in sys.stdin:
    screen.show(read_run_facts(RunFolder(Path(sys.argv[1]))), status)
    os.write(2, b"\\0")  # a byte that terminals ignore
"""


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "first", {"env": {"id": "CartPole-v1"}}, {})


@pytest.fixture(name="clock")
def fixture_clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(progress, "perf_counter", lambda: now[0])
    return now


def test_a_line_per_iteration_is_complete_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(3, None, 0)
    for iteration in (1, 2, 3):
        lines.write(METRICS | {"iteration": iteration})
        if iteration > 1:
            lines.flush()
    lines.close()
    rest = "steps 2,000  return 8  fps 1,234"
    assert capsys.readouterr().out.splitlines() == [
        f"iteration 1/3  33%  {rest}  0:02 left",  # at the speed of the newest iteration
        f"iteration 2/3  66%  {rest}  0:02 left",
        f"iteration 3/3  100%  {rest}  0:00 left",
    ]


def test_last_line_of_a_run_that_was_stopped_has_no_time_left(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(9, None, 5)
    for iteration in (1, 2):
        lines.write(METRICS | {"iteration": iteration})
        lines.flush()
    lines.close()
    first, last = capsys.readouterr().out.splitlines()
    assert first.endswith(" left")
    assert last == "iteration 2/9  22%  steps 2,000  return 8  fps 1,234"


def test_line_names_replaced_environments(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(3, None, 0)
    for iteration, count in ((1, 0), (2, 1)):
        lines.write(METRICS | {"iteration": iteration, "env_faults": count})
    lines.flush()
    first, second = capsys.readouterr().out.splitlines()
    assert "env_faults" not in first
    assert second.endswith("  env_faults 1")


def printed(capsys: pytest.CaptureFixture[str]) -> list[int]:
    return [int(line.split()[1].partition("/")[0]) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize(("log_every", "expected"), [(5.0, [1, 11, 21, 24]), (1.0, [1, 3, 5, 7, 9])])
def test_lines_are_printed_for_the_first_and_last_iteration_and_in_between_by_time(
    clock: list[float], log_every: float, expected: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(100, None, log_every)
    for iteration in range(1, expected[-1] + 1):
        lines.write(METRICS | {"iteration": iteration})
        lines.flush()
        clock[0] += 0.5
    lines.close()
    assert printed(capsys) == expected


def test_reaching_the_goal_is_printed_once_without_delay(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = Lines(100, 475.0, 5)
    for iteration, mean in enumerate((None, 80, 476, 80, 480, 80), 1):
        lines.write(METRICS | {"iteration": iteration, "return_mean_20": mean})
        lines.flush()
    first, solved = capsys.readouterr().out.splitlines()
    assert first.startswith("iteration 1/100  1%")
    assert solved == "iteration 3/100  3%  steps 2,000  return 476  fps 1,234  3:14 left  solved: goal 475"
    later = Lines(100, 475.0, 5)
    later.skip([METRICS | {"iteration": 1, "return_mean_20": 476.0}])
    later.write(METRICS | {"iteration": 2, "return_mean_20": 476.0})
    later.flush()
    assert "solved" not in capsys.readouterr().out


def test_lines_are_flushed_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        lines = Lines(3, None, 5)
        lines.write(METRICS | {"iteration": 1})
        lines.flush()
        assert (tmp_path / "out").read_text().startswith("iteration 1/3")


def test_evaluations_are_printed_as_lines(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(3, None, 5)
    lines.write_evaluation({"iteration": 2, "return_mean": 9.5, "sampled_return_mean": 8.25, "episodes": 5})
    lines.close()  # without any iteration
    assert capsys.readouterr().out == "evaluation of iteration 2  return 9.5  sampled 8.25  episodes 5\n"


def test_live_view_contains_evaluations(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    earlier = {"iteration": 2, "return_mean": 9.5, "sampled_return_mean": 8.25, "episodes": 5}
    (folder.path / "evaluations.jsonl").write_text(json.dumps(earlier) + "\n")
    bar = Bar(folder)
    bar.write(METRICS | {"iteration": 5})
    bar.write_evaluation({**earlier, "iteration": 4, "return_mean": 7.0})
    bar.close()
    assert "evaluated  7 at 4  sampled 8.25  best 9.5 at 2" in capsys.readouterr().err


def test_live_view_ends_with_the_last_state(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar(folder)
    for iteration in range(1, 901):
        bar.write(METRICS | {"iteration": iteration, "return_mean_20": float(iteration)})
        bar.flush()
    bar.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "return     900  best 900  ▁" in shown.err


def test_the_view_is_redrawn_at_most_twice_per_second(
    folder: RunFolder, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[float] = []
    monkeypatch.setattr(progress.Screen, "show", lambda self, about_run, status: drawn.append(clock[0]))
    bar = Bar(folder)
    drawn.clear()
    for iteration in range(1, 81):
        clock[0] += 0.0625
        bar.write(METRICS | {"iteration": iteration})
        bar.flush()
    bar.close()
    assert len(drawn) == 10 + 1  # `close` draws once more


def test_before_20_episodes_the_return_is_the_mean_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    lines = Lines(4, None, 0)
    lines.skip([METRICS | {"iteration": 1, "episodes": 1, "return_mean": -10.0}])
    lines.write(METRICS | {"iteration": 2, "episodes": 3, "return_mean": -2.0})
    lines.write(METRICS | {"iteration": 3, "episodes": 0, "return_mean": None})
    lines.write(METRICS | {"iteration": 4, "episodes": 16, "return_mean": 0.0, "return_mean_20": -0.8})
    lines.close()
    shown = [line.split("return ")[1].split()[0] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["-4", "-4", "-0.8"]


def test_a_resumed_run_shows_earlier_metrics(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (folder.path / "metrics.jsonl").write_text('{"iteration": 1, "return_mean_20": 77.0}\n')
    bar = Bar(folder)
    bar.write(METRICS | {"iteration": 2, "return_mean_20": 70.0})
    bar.close()
    assert "return     70  best 77" in capsys.readouterr().err


def test_the_display_depends_on_the_option_and_the_terminal(folder: RunFolder) -> None:
    assert display(RunConfig(progress="off"), folder, 3, False) == []
    (lines,) = display(RunConfig(), folder, 3, False)
    assert isinstance(lines, Lines)  # the output of tests is piped


class ZMQInteractiveShell:
    """Class whose name rich looks for to detect a notebook."""


class Displayed:
    """Outputs of a notebook's cell, by id, as `IPython.display.display` makes them."""

    def __init__(self) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0

    def display(self, content: dict[str, str], raw: bool, display_id: bool) -> "Displayed":
        assert raw
        assert display_id
        self.outputs.append(content)
        return self

    def update(self, content: dict[str, str], raw: bool) -> None:
        assert raw
        self.outputs[-1] = content
        self.updates += 1


@pytest.fixture(name="notebook")
def fixture_notebook(monkeypatch: pytest.MonkeyPatch) -> Displayed:
    displayed = Displayed()
    monkeypatch.setattr(builtins, "get_ipython", ZMQInteractiveShell, raising=False)
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", cast(ModuleType, displayed))
    return displayed


def test_a_notebook_has_one_output_that_is_replaced(
    folder: RunFolder, notebook: Displayed, clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    (bar,) = display(RunConfig(), folder, 9, False)
    for iteration in (1, 2, 3):
        bar.write(METRICS | {"iteration": iteration})
        bar.flush()
        clock[0] += 1
    bar.close()
    (content,) = notebook.outputs
    assert notebook.updates == 4
    assert "iteration  3\n" in content["text/plain"]
    assert content["text/html"].startswith("<pre style=")
    assert "iteration " in content["text/html"]
    assert "\x1b" not in content["text/html"]
    assert capsys.readouterr() == ("", "")


def test_train_draws_in_a_notebook_and_prints_no_garbage(
    notebook: Displayed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"rollout.steps": 16, "ppo.minibatches": 2, "runtime.compile": "off", "out": tmp_path}
    lockstep.train(total_steps=256, name="first", **settings)
    assert "iteration  2/2" in notebook.outputs[-1]["text/plain"]
    output, errors = capsys.readouterr()
    first, done, *others = output.splitlines()
    assert first == f"starting first: CartPole-v1, 1 rank, cpu, in {tmp_path / 'first'}"
    assert re.fullmatch(r"done: 2 iterations, \d+ steps in \d+\.\d s", done)
    assert [line.partition(":")[0] for line in others] == ["return", "run"]
    assert errors == ""


def test_view_is_erased_completely_after_the_terminal_becomes_narrower(
    folder: RunFolder, environ: dict[str, str]
) -> None:
    """A terminal that becomes narrower wraps the lines of the last view into more rows. All of these rows must be erased."""
    primary, terminal = pty.openpty()
    command = [sys.executable, "-c", DRAW, str(folder.path)]
    options: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": terminal, "bufsize": 0}
    drawn = ""
    environ = {name: value for name, value in environ.items() if name != "COLUMNS"} | {"TERM": "xterm"}
    with subprocess.Popen(command, env=environ, **options) as child:
        assert child.stdin is not None
        for width in (130, 24, 24, 7, 130):
            fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
            rows = sum(max(1, math.ceil(len(line) / width)) for line in drawn.split("\n"))
            child.stdin.write(b"\n")
            output = b""
            while not output.endswith(b"\0"):
                assert select.select([primary], [], [], 60)[0], output.decode()
                assert child.poll() is None, output.decode()
                output += os.read(primary, 1 << 16)
            text = output.decode().strip("\0").replace("\r\n", "\n")
            assert text.count("\x1b[1A") == rows - 1
            drawn = ESCAPE.sub("", text).rpartition("\r")[2]
            assert max(map(len, drawn.split("\n"))) <= width
        child.stdin.close()
    os.close(terminal)
    os.close(primary)
    assert child.returncode == 0

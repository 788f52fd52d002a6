"""`lockstep watch`: runs that others train, as they go on, end and go back."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.live_runs import wait_for

from lockstep.cli import watch
from lockstep.cli.main import main
from lockstep.run.folder import RunFolder
from lockstep.telemetry.attempts import read_starts, record_attempt

TREE = {"version": 1, "env": {"id": "CartPole-v1"}, "run": {"solved_return": None}}


class Carrier:
    """Somebody who trains the run `runs/first`."""

    def __init__(self) -> None:
        self.folder = RunFolder.create(Path("runs/first"), TREE, {})
        self.folder.lock()
        self.done = 0
        self.stopped = False

    def go(self, iterations: int) -> None:
        with (self.folder.path / "metrics.jsonl").open("a") as file:
            for _ in range(iterations):
                self.done += 1
                row = {"iteration": self.done, "env_steps": 10 * self.done, "fps": 5.0, "t_iter": 2.0, "t_learn": 2.0}
                file.write(json.dumps({**row, "return_mean_20": float(self.done)}) + "\n")


@pytest.fixture(autouse=True)
def fixture_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "_PERIOD", 0.01)


@pytest.fixture(name="carrier")
def fixture_carrier() -> Iterator[Carrier]:
    carrier = Carrier()
    yield carrier
    carrier.folder.unlock()


def script(monkeypatch: pytest.MonkeyPatch, *steps) -> None:
    """What happens between the looks of `watch`, one step after each."""
    left = list(steps)
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: left.pop(0)() if left else None)


def output(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["watch", *words])
    return code, *capsys.readouterr()


def test_a_run_to_its_end(
    carrier: Carrier, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = record_attempt(carrier.folder, 0, 9, 1, "coupled")

    def end() -> None:
        carrier.go(1)
        noted.__exit__(None, None, None)
        carrier.folder.unlock()

    script(monkeypatch, lambda: None, noted.__enter__, lambda: carrier.go(3), lambda: carrier.go(2), end)
    code, out, err = output(capsys, "first")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        *(f"iteration {number}/9  steps {number}0  return {number}  fps 5  kl -  entropy -" for number in range(3, 7)),
        "done: runs/first",
    ]


def test_evaluations(carrier: Carrier, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def evaluate() -> None:
        row = {"iteration": carrier.done, "return_mean": 7.5, "sampled_return_mean": 7.0, "episodes": 5}
        with (carrier.folder.path / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    with record_attempt(carrier.folder, 0, 9, 1, "coupled"):
        carrier.go(2)
        evaluate()
        _, out, _ = output(capsys, "first", "--once")
        assert "evaluated  7.5 at 2  sampled 7  best 7.5 at 2" in out
        script(monkeypatch, lambda: carrier.go(1), evaluate, carrier.folder.unlock)
        _, out, _ = output(capsys, "first")
    returns = "return 7.5  sampled 7  episodes 5"
    assert [line for line in out.splitlines() if "evaluation" in line] == [
        f"evaluation of iteration {number}  {returns}" for number in (2, 3)
    ]


def test_a_run_that_is_killed_and_at_once_resumed(
    carrier: Carrier, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with record_attempt(carrier.folder, 0, 9, 1, "coupled"):
        carrier.go(5)

    def resume() -> None:
        carrier.folder.lock()
        carrier.folder.cut_metrics(2)
        carrier.done = 2
        carrier.go(1)

    script(monkeypatch, carrier.folder.unlock, resume, lambda: carrier.go(1), carrier.folder.unlock)
    _, out, _ = output(capsys, "first")
    assert [line.split()[1] for line in out.splitlines()[:-1]] == ["5/9", "1/9", "2/9", "3/9", "4/9"]


@pytest.mark.parametrize(
    ("how", "code", "line"),
    [
        ("stopped", 75, "stopped by a signal to another rank"),
        ("failed", 1, "failed: RuntimeError: it burns"),
        ("killed", 1, "killed, or its host is down"),
    ],
)
def test_how_it_ended(carrier: Carrier, how: str, code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    noted = record_attempt(carrier.folder, 0, 9, 1, "coupled")
    carried = noted.__enter__()
    carrier.go(2)
    if how == "stopped":
        carrier.stopped = True
        carried.run = carrier  # type: ignore[assignment]
        noted.__exit__(None, None, None)
    elif how == "failed":
        error = RuntimeError("it burns")
        assert not noted.__exit__(RuntimeError, error, None)
    carrier.folder.unlock()
    expected = [line, "resume with: lockstep resume runs/first"]
    assert (output(capsys, "first")[0], output(capsys, "first")[1].splitlines()[1:]) == (code, expected)
    shown = output(capsys, "first", "--once")
    assert shown[0] == 0
    assert "iteration  2/9" in shown[1]
    assert shown[1].splitlines()[-2:] == expected


def test_once_of_a_run_that_goes_on(carrier: Carrier, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = output(capsys, "first", "--once")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "first  CartPole-v1",
        "iteration  waiting until all ranks are connected",
        "state      starting",
    ]
    with record_attempt(carrier.folder, 0, 9, 1, "coupled"):
        carrier.go(2)
        code, out, err = output(capsys, "first", "--once")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "first  CartPole-v1, coupled, 1 rank"
    assert "\x1b" not in out
    assert "killed" not in out


def test_a_run_of_an_older_version(carrier: Carrier, capsys: pytest.CaptureFixture[str]) -> None:
    carrier.go(2)
    carrier.folder.unlock()
    code, out, _ = output(capsys, "first")
    assert (code, out.splitlines()[1]) == (0, "no process is running runs/first")


def test_no_such_run_and_a_broken_one(carrier: Carrier, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "frist") == (2, "", "lockstep: 'frist': there is no such run; did you mean runs/first?\n")
    Path("runs/first/config.json").write_text("{")
    code, out, err = output(capsys, "first")
    assert (code, out, len(err.splitlines())) == (2, "", 1)


def seen(descriptor: int) -> str:
    """All that a terminal got."""
    found = b""
    while True:
        try:
            part = os.read(descriptor, 65536)
        except OSError:  # everybody has closed it
            return found.decode()
        found += part
        if not part:
            return found.decode()


@pytest.mark.serial
def test_a_terminal_while_a_run_is_trained_and_stopped(begin, tmp_path: Path, environ: dict[str, str]) -> None:
    words = ("--env.engine", "gymnasium-vector", "--runtime.compile", "off", "--run.progress", "off", "--name", "live")
    trained = begin("train", "cartpole", *words, "--plan.shards", 2, "--plan", "1:1", "--total-steps", 10**8)
    run = RunFolder(tmp_path / "runs" / "live")
    wait_for(lambda: read_starts(run) and run.metrics(), "the first iteration")
    ours, theirs = pty.openpty()
    terminal = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    command = [sys.executable, "-m", "lockstep", "watch", "live"]
    variables = environ | {"TERM": "xterm", "COLUMNS": "80"}
    watching = [subprocess.Popen(command, cwd=tmp_path, env=variables, **terminal) for _ in range(2)]
    os.close(theirs)
    reader = threading.Thread(target=lambda: texts.append(seen(ours)))
    texts: list[str] = []
    reader.start()
    done = len(run.metrics())
    wait_for(lambda: len(run.metrics()) > done + 5, "some more")
    watching[0].send_signal(signal.SIGINT)
    assert watching[0].wait(timeout=30) == 130
    trained.terminate()
    assert trained.wait(timeout=30) == 75
    assert watching[1].wait(timeout=30) == 75
    reader.join()
    os.close(ours)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", texts[0])
    assert "live  CartPole-v1, 1:1, 2 ranks" in plain
    assert re.search(r"waiting    rank 0 \d+%  rank 1 \d+%", plain)
    assert "stopped by SIGTERM" in plain
    assert "Traceback" not in plain
    for row in run.metrics():
        trainer, player = row["idle"]  # type: ignore[misc, attr-defined]
        assert 0 <= trainer < 1
        assert player == pytest.approx(row["player_t_wait"] / row["player_t_iter"], abs=1e-4)  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_is_answered_at_once_where_a_run_is_drawn(tmp_path: Path, environ: dict[str, str], ranks: int) -> None:
    ours, theirs = pty.openpty()
    words = (
        "--env",
        "CartPole-v1",
        "--total-steps",
        10**8,
        "--ranks",
        ranks,
        "--plan.shards",
        2,
        "--rollout.steps",
        4096,
    )
    command = [
        sys.executable,
        "-m",
        "lockstep",
        "train",
        *map(str, words),
        "--runtime.compile",
        "off",
        "--name",
        "live",
    ]
    terminal = {"stdin": theirs, "stdout": theirs, "stderr": theirs, "start_new_session": True}
    variables = environ | {"TERM": "xterm", "COLUMNS": "80"}
    texts: list[str] = []
    with subprocess.Popen(command, cwd=tmp_path, env=variables, **terminal) as process:
        os.close(theirs)
        reader = threading.Thread(target=lambda: texts.append(seen(ours)))
        reader.start()
        wait_for(lambda: RunFolder(tmp_path / "runs" / "live").metrics(), "the first iteration")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 75
    reader.join()
    os.close(ours)
    before, told, after = texts[0].partition(
        "\r\x1b[2Kstopping after the iteration at hand; a second Ctrl-C ends it at once"
    )
    assert told
    assert "stopping" not in before + after
    assert after.startswith("\r\x1b[2K"), "drawn over"

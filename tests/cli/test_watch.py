"""`lockstep watch`: runs of other processes that continue, end and are resumed from an earlier iteration."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.live_runs import wait_for

from lockstep.cli import watch
from lockstep.cli.main import main
from lockstep.config import VERSION
from lockstep.run.folder import RunFolder
from lockstep.telemetry.attempts import read_starts, record_attempt

TREE = {"version": VERSION, "env": {"id": "CartPole-v1"}, "run": {"solved_return": None, "log_every": 0}}


class FakeTraining:
    """Simulated process that trains the run `runs/first`."""

    def __init__(self) -> None:
        self.folder = RunFolder.create(Path("runs/first"), TREE, {})
        self.folder.lock()
        self.done = 0
        self.stopped = False

    def run_iterations(self, iterations: int) -> None:
        with (self.folder.path / "metrics.jsonl").open("a") as file:
            for _ in range(iterations):
                self.done += 1
                row = {"iteration": self.done, "env_steps": 10 * self.done, "fps": 5.0, "t_iter": 2.0, "t_learn": 2.0}
                file.write(json.dumps({**row, "return_mean_20": float(self.done)}) + "\n")


@pytest.fixture(autouse=True)
def fixture_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(watch, "_PERIOD", 0.01)


@pytest.fixture(name="training")
def fixture_training() -> Iterator[FakeTraining]:
    training = FakeTraining()
    yield training
    training.folder.unlock()


def script(monkeypatch: pytest.MonkeyPatch, *steps) -> None:
    """Call one of `steps` after each update of `watch`, in place of its pause, then twice nothing, then interrupt it as Ctrl-C does."""

    def interrupt() -> None:
        raise KeyboardInterrupt

    remaining_steps = [*steps, lambda: None, lambda: None, interrupt]
    monkeypatch.setattr(watch.time, "sleep", lambda seconds: remaining_steps.pop(0)())


def output(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["watch", *words])
    return code, *capsys.readouterr()


def test_iterations_are_printed_until_the_run_ends(
    training: FakeTraining, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = record_attempt(training.folder, 0, 9, 1, "coupled")

    def end() -> None:
        training.run_iterations(1)
        noted.__exit__(None, None, None)
        training.folder.unlock()

    script(
        monkeypatch,
        lambda: None,
        noted.__enter__,
        lambda: training.run_iterations(3),
        lambda: training.run_iterations(2),
        end,
    )
    code, out, err = output(capsys, "first")
    assert (code, err) == (0, "")
    assert out.splitlines()[1:] == [
        *(
            f"iteration {number}/9  {100 * number // 9}%  steps {number}0  return {number}  fps 5  0:{left:02} left"
            for number, left in ((3, 12), (4, 8), (5, 8), (6, 6))
        ),
        "done: runs/first",
    ]


def test_a_run_without_iterations_is_announced_at_once(
    training: FakeTraining, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[str] = []
    with record_attempt(training.folder, 0, 9, 1, "coupled"):
        assert "no iteration is done yet" in output(capsys, "first", "--once")[1]
        script(
            monkeypatch,
            lambda: seen.append(capsys.readouterr().out),
            lambda: training.run_iterations(1),
            training.folder.unlock,
        )
        output(capsys, "first")
    assert seen == ["waiting for the first iteration of runs/first: ranks are starting\n"]


def test_evaluations_are_printed(
    training: FakeTraining, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def evaluate() -> None:
        row = {"iteration": training.done, "return_mean": 7.5, "sampled_return_mean": 7.0, "episodes": 5}
        with (training.folder.path / "evaluations.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    with record_attempt(training.folder, 0, 9, 1, "coupled"):
        training.run_iterations(2)
        evaluate()
        _, out, _ = output(capsys, "first", "--once")
        assert "evaluated  7.5 at 2  sampled 7  best 7.5 at 2" in out
        script(monkeypatch, lambda: training.run_iterations(1), evaluate, training.folder.unlock)
        _, out, _ = output(capsys, "first")
    returns = "return 7.5  sampled 7  episodes 5"
    assert [line for line in out.splitlines() if "evaluation" in line] == [
        f"evaluation of iteration {number}  {returns}" for number in (2, 3)
    ]


def test_run_that_is_killed_and_resumed_directly_is_followed(
    training: FakeTraining, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with record_attempt(training.folder, 0, 9, 1, "coupled"):
        training.run_iterations(5)

    def resume() -> None:
        training.folder.lock()
        training.folder.truncate_metrics(2)
        training.done = 2
        training.run_iterations(1)

    script(monkeypatch, training.folder.unlock, resume, lambda: training.run_iterations(1), training.folder.unlock)
    code, out, _ = output(capsys, "first")
    assert code == 0
    assert [line.split()[1] for line in out.splitlines()[:-1]] == ["5/9", "3/9", "4/9"]


def test_interrupted_run_is_followed_after_it_is_resumed(
    training: FakeTraining, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    killed, resumed = (record_attempt(training.folder, iteration, 9, 1, "coupled") for iteration in (0, 2))
    killed.__enter__()
    training.run_iterations(3)

    def resume() -> None:
        training.folder.truncate_metrics(2)
        training.done = 2
        resumed.__enter__()
        training.run_iterations(1)

    def end() -> None:
        training.run_iterations(1)
        resumed.__exit__(None, None, None)
        training.folder.unlock()

    script(monkeypatch, training.folder.unlock, *[lambda: None] * 5, training.folder.lock, resume, end)
    code, out, _ = output(capsys, "first")
    assert code == 0
    assert [" ".join(line.split()[:2]) for line in out.splitlines()] == [
        *("iteration 3/9", "killed, or", "resume with:", "resumed"),
        *("iteration 3/9", "iteration 4/9", "done: runs/first"),
    ]


def test_state_of_an_interrupted_run_changes_when_it_is_resumed(
    training: FakeTraining, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, resumed = (record_attempt(training.folder, iteration, 9, 1, "coupled") for iteration in (0, 3))
    killed.__enter__()
    training.run_iterations(3)
    os.utime(training.folder.path / "metrics.jsonl", (0, 0))
    states: list[str] = []
    monkeypatch.setattr(watch.Screen, "show", lambda screen, facts, status, state: states.append(state))
    script(
        monkeypatch,
        training.folder.unlock,
        *[lambda: None] * 2,
        training.folder.lock,
        resumed.__enter__,
        lambda: training.run_iterations(1),
        *(lambda: resumed.__exit__(None, None, None), training.folder.unlock),
    )
    assert watch._on_terminal(training.folder) == 0
    assert [re.sub(r"was .* ago", "was … ago", state) for state in states] == [
        *["the last iteration was … ago"] * 2,
        *["waiting for lockstep resume: killed, or its host is down"] * 2,
        "starting",
        "the last iteration was … ago",
        *["", "starting", "starting", ""],
    ]


def test_all_runs_that_are_being_trained_are_shown(
    training: FakeTraining, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    RunFolder.create(Path("runs/second"), TREE, {})
    training.run_iterations(2)
    code, out, _ = output(capsys)  # the output is not a terminal
    assert code == 0
    assert [line.split()[:4] for line in out.splitlines()] == [
        ["run", "state", "environment", "steps"],
        ["first", "running", "CartPole-v1", "20"],
    ]
    views: list[str] = []
    monkeypatch.setattr(watch.Screen, "show_text", lambda screen, view: views.append(view.plain))
    script(monkeypatch, lambda: training.run_iterations(1), training.folder.unlock)
    with pytest.raises(KeyboardInterrupt):
        watch._show_all(Path("runs"), once=False)
    assert [view.splitlines()[-1].split()[:4] for view in views[:2]] == [
        ["first", "running", "CartPole-v1", steps] for steps in ("20", "30")
    ]
    assert views[2] == "no run in runs is being trained"


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("stopped", "stopped by a signal to another rank"),
        ("failed", "failed: RuntimeError: it burns"),
        ("killed", "killed, or its host is down"),
    ],
)
def test_outcome_of_an_interrupted_run_is_printed(
    training: FakeTraining, how: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    noted = record_attempt(training.folder, 0, 9, 1, "coupled")
    carried = noted.__enter__()
    training.run_iterations(2)
    if how == "stopped":
        training.stopped = True
        carried.run = training  # type: ignore[assignment]
        noted.__exit__(None, None, None)
    elif how == "failed":
        error = RuntimeError("it burns")
        assert not noted.__exit__(RuntimeError, error, None)
    training.folder.unlock()
    expected = [line, "resume with: lockstep resume runs/first"]
    script(monkeypatch)
    code, out, _ = output(capsys, "first")
    assert (code, out.splitlines()[1:]) == (130, expected)
    shown = output(capsys, "first", "--once")
    assert shown[0] == 0
    assert "iteration  2/9" in shown[1]
    assert shown[1].splitlines()[-2:] == expected


def test_once_prints_the_state_of_a_running_run(training: FakeTraining, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = output(capsys, "first", "--once")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "first  CartPole-v1",
        "iteration  waiting until all ranks are connected",
        "state      starting",
    ]
    with record_attempt(training.folder, 0, 9, 1, "coupled"):
        training.run_iterations(2)
        code, out, err = output(capsys, "first", "--once")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "first  CartPole-v1, coupled, 1 rank"
    assert "\x1b" not in out
    assert "killed" not in out


def test_run_of_an_older_version_is_shown(training: FakeTraining, capsys: pytest.CaptureFixture[str]) -> None:
    training.run_iterations(2)
    training.folder.unlock()
    code, out, _ = output(capsys, "first")
    assert (code, out.splitlines()[1]) == (0, "no process is running runs/first")


def test_missing_and_broken_runs_are_reported_in_one_line(
    training: FakeTraining, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output(capsys, "frist") == (2, "", "lockstep: 'frist': there is no such run; did you mean runs/first?\n")
    Path("runs/first/config.json").write_text("{")
    code, out, err = output(capsys, "first")
    assert (code, out, len(err.splitlines())) == (2, "", 1)


def read_terminal(descriptor: int, output: bytearray) -> None:
    """Append everything that is written to a terminal to `output`, until the terminal is closed."""
    with suppress(OSError):  # all writers have closed it
        while part := os.read(descriptor, 65536):
            output += part


@pytest.mark.slow
def test_terminal_shows_a_run_that_is_trained_and_stopped(begin, tmp_path: Path, environ: dict[str, str]) -> None:
    words = ("--env.engine", "gymnasium-vector", "--runtime.compile", "off", "--run.progress", "off", "--name", "live")
    trained = begin("train", "cartpole", *words, "--plan.shards", 2, "--plan", "1:1", "--total-steps", 10**8)
    run = RunFolder(tmp_path / "runs" / "live")
    wait_for(lambda: read_starts(run) and run.metrics(), "the first iteration")
    reading_end, writing_end = pty.openpty()
    terminal = {"stdin": writing_end, "stdout": writing_end, "stderr": writing_end, "start_new_session": True}
    command = [sys.executable, "-m", "lockstep", "watch", "live"]
    variables = environ | {"TERM": "xterm", "COLUMNS": "80"}
    watching = [subprocess.Popen(command, cwd=tmp_path, env=variables, **terminal) for _ in range(2)]
    os.close(writing_end)
    output = bytearray()
    reader = threading.Thread(target=read_terminal, args=(reading_end, output))
    reader.start()
    done = len(run.metrics())
    wait_for(lambda: len(run.metrics()) > done + 5, "some more")
    watching[0].send_signal(signal.SIGINT)
    assert watching[0].wait(timeout=60) == 130
    trained.terminate()
    assert trained.wait(timeout=60) == 75
    wait_for(lambda: b"waiting for lockstep resume: stopped by SIGTERM" in output, "that the interruption is shown")
    resumed = begin("resume", "live", "--run.progress", "off", "--plan", "1:1")
    wait_for(lambda: b"resumed 1 time" in output, "that the resumed run is shown")
    watching[1].send_signal(signal.SIGINT)
    assert watching[1].wait(timeout=60) == 130
    resumed.terminate()
    assert resumed.wait(timeout=60) == 75
    reader.join()
    os.close(reading_end)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    assert "live  CartPole-v1, 1:1, 2 ranks" in plain
    assert re.search(r"waiting    rank 0 \d+%  rank 1 \d+%", plain)
    assert "Traceback" not in plain
    for row in run.metrics():
        trainer, player = row["idle"]  # type: ignore[misc, attr-defined]
        assert 0 <= trainer < 1
        assert player == pytest.approx(row["player_t_wait"] / row["player_t_iter"], abs=1e-4)  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.exhaustive), 2])
def test_ctrl_c_is_acknowledged_at_once_in_the_live_view(tmp_path: Path, environ: dict[str, str], ranks: int) -> None:
    reading_end, writing_end = pty.openpty()
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
    terminal = {"stdin": writing_end, "stdout": writing_end, "stderr": writing_end, "start_new_session": True}
    variables = environ | {"TERM": "xterm", "COLUMNS": "80"}
    output = bytearray()
    with subprocess.Popen(command, cwd=tmp_path, env=variables, **terminal) as process:
        os.close(writing_end)
        reader = threading.Thread(target=read_terminal, args=(reading_end, output))
        reader.start()
        wait_for(lambda: RunFolder(tmp_path / "runs" / "live").metrics(), "the first iteration")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 75
    reader.join()
    os.close(reading_end)
    before, message, after = output.decode().partition(
        "\r\x1b[2Kstopping after this iteration; a second Ctrl-C stops immediately"
    )
    assert message
    assert "stopping" not in before + after
    assert after.startswith("\r\x1b[2K"), "drawn over"

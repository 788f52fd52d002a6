"""How the launcher judges ranks that end, hang, or do not stop. The ranks are small programs with a heartbeat."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest

from lockstep.group.memory import create_memory
from lockstep.processes.exit_codes import (
    DONE,
    FAILED,
    INTERRUPTED,
    NON_FINITE,
    RANK_LOST,
    REPLICAS_DIFFER,
    STOPPED_BY_SIGNAL,
)
from lockstep.processes.heartbeat import Heartbeats
from lockstep.run import stop
from lockstep.runtime import hang_detector
from lockstep.runtime import watch as module
from lockstep.runtime.watch import Outcome, watch

START = """
import faulthandler, os, signal, sys, time
from lockstep.processes import heartbeat
from lockstep.processes.signals import STACKS_SIGNAL
faulthandler.register(STACKS_SIGNAL, 2)
rank, size, memory = map(int, sys.argv[1:])
heartbeat.attach(heartbeat.Heartbeats(memory, size).cells_of(rank), watched=True)
heartbeat.set_iteration(5)
def end(code):
    heartbeat.set_exit_code(code)
    os._exit(code)
def work(seconds):
    for _ in range(int(seconds / 0.05)):
        heartbeat.beat(2)
        time.sleep(0.05)
"""
Watched = Callable[..., Outcome]


@pytest.fixture
def watched(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Function that runs a program for each rank and returns their outcome. A rank may be without a heartbeat for a second."""
    monkeypatch.setattr(hang_detector, "_START_LIMIT", 0.0)
    monkeypatch.setattr(stop, "_asked", 0)
    monkeypatch.setattr(stop, "_asked_again", 0)
    started: list[subprocess.Popen[bytes]] = []

    def run(*programs: str) -> Outcome:
        memory = create_memory(len(programs))
        for rank, program in enumerate(programs):
            command = [sys.executable, "-c", START + program, str(rank), str(len(programs)), str(memory)]
            started.append(subprocess.Popen(command, env=environ, pass_fds=(memory,), start_new_session=True))
        heartbeats = Heartbeats(memory, len(programs))
        os.close(memory)
        deadline = time.monotonic() + 30
        while (
            not all(heartbeats.of_rank(rank).iteration for rank in range(len(programs))) and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        return watch(started, heartbeats, 1.0, set())

    yield run
    assert all(process.poll() is not None for process in started), "no rank is left behind"


def test_ranks_that_end_by_themselves(watched: Watched) -> None:
    assert watched("work(0.2); end(0)", "end(0)") == Outcome(DONE, "", 5)


@pytest.mark.parametrize("code", [1, 2, NON_FINITE])
def test_error_that_would_come_back_is_no_fault(watched: Watched, code: int) -> None:
    assert watched(f"end({code})", "work(0.3); end(4)") == Outcome(code, "", 5)


def test_many_ranks_that_hang_are_not_taken_for_a_pause_of_the_launcher(
    watched: Watched, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(module, "STACKS_TIME", 2.5)  # longer than a pause has to be; as for a hundred ranks
    monkeypatch.setattr(module._Watch, "_skip_pause", lambda watch, seconds: pauses.append(seconds))
    outcome = watched(*["time.sleep(60)"] * 6)
    assert (outcome.code, pauses) == (RANK_LOST, [])
    assert 'File "<string>"' in capfd.readouterr().err


@pytest.mark.parametrize("code", [0, 2, 75])
def test_exit_code_of_foreign_code_is_a_fault(watched: Watched, code: int) -> None:
    fault = f"rank 1 ended with exit code {code}, before the end of training"
    assert watched("work(0.3); end(4)", f"os._exit({code})") == Outcome(RANK_LOST, fault, 5)


def test_killed_rank_is_the_cause_also_if_another_one_reports_first(watched: Watched) -> None:
    outcome = watched("end(4)", "work(0.3); os.kill(os.getpid(), signal.SIGKILL)")
    assert outcome == Outcome(FAILED, "rank 1 was killed by SIGKILL", 5)


def test_signal_without_a_name_is_described_by_its_number(watched: Watched) -> None:
    number = signal.SIGRTMIN + 3
    outcome = watched(f"os.kill(os.getpid(), {number})")
    assert outcome == Outcome(FAILED, f"rank 0 was killed by signal {number}", 5)


def test_ranks_that_disagree_are_a_fault(watched: Watched) -> None:
    assert watched(f"end({REPLICAS_DIFFER})").fault == "the ranks hold different weights"


@pytest.mark.parametrize(
    "program",
    [
        "time.sleep(60)",
        "while True: pass",
        pytest.param("signal.pause()", marks=pytest.mark.exhaustive),
    ],
)
def test_silent_rank_is_named_and_ended(watched: Watched, capfd: pytest.CaptureFixture[str], program: str) -> None:
    outcome = watched(
        "work(60)",
        f"heartbeat.enter('rollout'); heartbeat.beat(3); {program}"
        if "while" not in program
        else f"heartbeat.enter('rollout'); heartbeat.beat(3)\n{program}",
    )
    assert outcome.code == RANK_LOST
    where = r"rank 1 on host \S+ made no progress for 1 s in stage rollout, iteration 5, environment 3"
    assert re.fullmatch(rf"{where} \(see runtime.timeout\)", outcome.fault)
    assert "most recent call first" in capfd.readouterr().err, "the stack traces"


def test_stopped_rank_is_ended(watched: Watched) -> None:
    outcome = watched("heartbeat.beat(); os.kill(os.getpid(), signal.SIGSTOP)")
    assert "rank 0" in outcome.fault
    assert "was stopped by a signal for 1 s" in outcome.fault


def test_time_in_which_the_launcher_was_stopped_does_not_count(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses, sleep = iter([2.5]), time.sleep
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: sleep(next(pauses, seconds)))
    monkeypatch.setattr(module, "time", clock)
    assert watched("time.sleep(3); end(0)").fault == ""


def test_silence_that_is_long_for_the_stage_is_announced(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(hang_detector, "_WARN_AFTER", 0.5)
    monkeypatch.setattr(hang_detector, "_WARN_FACTOR", 1.0)
    assert watched("heartbeat.enter('learn'); work(0.3); time.sleep(0.9); work(0.1); end(0)").code == DONE
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert re.match(r"lockstep: rank 0 has made no progress for \d s in stage learn, iteration 5", lines[0])


def test_rank_that_waits_in_a_library_is_not_silent(watched: Watched) -> None:
    assert watched("with heartbeat.waiting(): time.sleep(2.5)\nend(0)").code == DONE


def test_rank_that_has_decided_but_does_not_end(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of foreign code may keep a process alive."""
    monkeypatch.setattr(module, "_GRACE_AFTER_EXIT_CODE", 0.3)
    assert watched("heartbeat.set_exit_code(0); time.sleep(60)") == Outcome(DONE, "", 5)


def test_long_iteration_is_abandoned_after_a_signal(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_GRACE_AFTER_SIGNAL", 0.5)
    timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGHUP))
    timer.start()
    outcome = watched("signal.signal(signal.SIGHUP, signal.SIG_IGN); heartbeat.enter('learn'); work(60)")
    timer.join()
    assert (outcome.code, outcome.fault) == (STOPPED_BY_SIGNAL, "")
    text = "the iteration did not end within 0.5 s of the signal and is abandoned"
    assert capfd.readouterr().err.count(text) == 1


def test_rank_0_has_time_to_close_after_a_signal(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Trackers and videos take longer than the ranks that only train, after a stop as after the end."""
    monkeypatch.setattr(module, "_GRACE_AFTER_FAILURE", 0.3)
    monkeypatch.setattr(module, "_GRACE_AFTER_SUCCESS", 0.3)
    monkeypatch.setattr(module, "_GRACE_AFTER_SIGNAL", 0.3)
    monkeypatch.setattr(stop, "_asked", signal.SIGTERM)
    program = f"heartbeat.enter('end'); work(1.5); print('closed', flush=True); end({STOPPED_BY_SIGNAL})"
    assert watched(f"signal.signal(signal.SIGTERM, signal.SIG_IGN); {program}", f"end({STOPPED_BY_SIGNAL})") == Outcome(
        STOPPED_BY_SIGNAL, "", 5
    )
    assert capfd.readouterr().out == "closed\n"


def test_another_signal_ends_the_ranks_without_a_fault(watched: Watched) -> None:
    """SIGUSR1 asks to stop, then SIGTERM ends at once."""
    timers = [
        threading.Timer(delay, os.kill, (os.getpid(), number))
        for delay, number in ((0.3, signal.SIGUSR1), (0.6, signal.SIGTERM))
    ]
    for timer in timers:
        timer.start()
    outcome = watched("signal.signal(signal.SIGUSR1, signal.SIG_IGN); work(60)")
    for timer in timers:
        timer.join()
    assert (outcome.code, outcome.fault) == (STOPPED_BY_SIGNAL, "")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, INTERRUPTED), (signal.SIGTERM, STOPPED_BY_SIGNAL)])
def test_second_signal_kills_ranks_that_do_not_handle_it(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    """A call of compiled code delays the handlers of Python."""
    monkeypatch.setattr(stop, "_DUPLICATE_WINDOW", 0.1)
    monkeypatch.setattr(module, "_GRACE_AFTER_SECOND_SIGNAL", 0.3)
    timers = [threading.Timer(delay, os.kill, (os.getpid(), number)) for delay in (0.3, 0.6)]
    for timer in timers:
        timer.start()
    began = time.monotonic()
    outcome = watched(*[f"signal.signal({int(number)}, signal.SIG_IGN); work(60)"] * 2)
    assert time.monotonic() - began < 15
    for timer in timers:
        timer.join()
    assert (outcome.code, outcome.fault) == (code, "")


def test_duplicate_of_a_signal_does_not_kill_the_ranks(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GRACE_AFTER_SECOND_SIGNAL", 0.0)
    timers = [threading.Timer(delay, os.kill, (os.getpid(), signal.SIGTERM)) for delay in (0.3, 0.6)]
    for timer in timers:
        timer.start()
    outcome = watched("signal.signal(signal.SIGTERM, signal.SIG_IGN); work(1.5); end(0)")
    for timer in timers:
        timer.join()
    assert outcome == Outcome(DONE, "", 5)

"""Calls of hooks: their errors, and the warning about one that does not return."""

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lockstep.algorithm.agent import Agent
from lockstep.config import Config
from lockstep.experiment import hooks


def agent(digest: str) -> Agent:
    """An agent of which only the digest is used."""
    return cast(Agent, SimpleNamespace(digest=lambda: digest))


class Clock:
    """Time that passes when a test says so, with the timers that are due."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while due := [timer for timer in self.timers if timer[0] <= end]:
            first = min(due, key=lambda timer: timer[0])
            self.timers.remove(first)
            self.now = first[0]
            first[1]()
        self.now = end

    def timer(self, seconds: float, function: Callable[[], None]) -> Any:
        clock = self

        class Timer:
            daemon = False

            def start(self) -> None:
                clock.timers.append((clock.now + seconds, function))

        return Timer()


@pytest.fixture(name="clock")
def fixture_clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(hooks, "monotonic", lambda: clock.now)
    monkeypatch.setattr(hooks.threading, "Timer", clock.timer)
    return clock


@pytest.fixture(name="call")
def fixture_call(clock: Clock, tmp_path: Path) -> Callable[[float], None]:
    """Function that calls a hook which takes some seconds."""
    bound = hooks.bind_hook(lambda iteration: clock.advance(cast(float, iteration.metrics["wait"])), Config(), tmp_path)

    def call(seconds: float) -> None:
        metrics: dict[str, Any] = {"iteration": 1, "wait": seconds, "digest": "a"}
        bound(metrics, agent("a"))

    return call


def test_hook_that_does_not_return_is_named_once_per_call(
    call: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        call(100)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all("has not returned for 30 s; training waits for it" in line for line in lines)


def test_short_calls_are_not_warned_of_and_start_few_timers(
    call: Callable[[float], None], clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(100):
        call(1)
        clock.advance(0.5)
        assert len(clock.timers) <= 1
    assert capsys.readouterr().err == ""


def test_call_that_blocks_after_short_calls_is_warned_of_after_30_seconds(
    call: Callable[[float], None], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(10):
        call(1)
    call(29)  # the timer of the first call ends during this one
    assert capsys.readouterr().err == ""
    for _ in range(10):
        call(1)
    call(45)
    assert capsys.readouterr().err.count("has not returned") == 1


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("no such\nkey"), r"failed after iteration 7: KeyError: 'no such\\nkey'"),
        (RuntimeError("no\n  key"), "failed after iteration 7: RuntimeError: no key"),
        (SystemExit("that is\nenough"), r"called sys\.exit\(that is enough\) after iteration 7: .* method stop\(\)"),
    ],
)
def test_error_of_a_hook_is_one_line(error: BaseException, message: str, tmp_path: Path) -> None:
    def broken(iteration: hooks.Iteration) -> None:
        raise error

    with pytest.raises(hooks.HookFailed) as caught:
        hooks.bind_hook(broken, Config(), tmp_path)({"iteration": 7}, cast(Agent, None))
    assert re.fullmatch(rf"the hook \S+broken {message}", str(caught.value))
    assert caught.value.__cause__ is error


def test_a_hook_may_change_its_copy_of_the_metrics(tmp_path: Path) -> None:
    metrics = {"iteration": 7, "loss": 2.0}

    def clear(iteration: hooks.Iteration) -> None:
        iteration.metrics.clear()
        raise ValueError(f"mine {iteration.number}")

    with pytest.raises(hooks.HookFailed, match=r"failed after iteration 7: ValueError: mine 7$"):
        hooks.bind_hook(clear, Config(), tmp_path)(metrics, cast(Agent, None))
    assert metrics == {"iteration": 7, "loss": 2.0}


def test_a_hook_that_changed_the_agent_is_named(tmp_path: Path) -> None:
    def changes(iteration: hooks.Iteration) -> None:
        pass

    bound = hooks.bind_hook(changes, Config(), tmp_path)
    assert bound({"iteration": 7, "digest": "a"}, agent("a")) == ({}, False)
    with pytest.raises(hooks.HookFailed, match=r"changes changed the agent in training after iteration 7: change iter"):
        bound({"iteration": 7, "digest": "a"}, agent("b"))

"""When a run was started, by whom it was carried and how that ended: `starts.jsonl`, for people and for reports.

One object per start and one per end. A start that has no end behind it goes on, or was killed.
"""

import json
import platform
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Literal

from lockstep.run.environment import packages
from lockstep.run.folder import RunFolder, write_aside
from lockstep.run.stop import StoppedEarly, asked_to_stop

if TYPE_CHECKING:
    from lockstep.run.run import Run

__all__ = ["Attempt", "Start", "read_starts", "record_attempt"]

_FILE = "starts.jsonl"


@dataclass(frozen=True)
class Start:
    """One time that a run was started, and how that ended."""

    begun: datetime
    """In UTC, as `ended`."""
    iteration: int
    """The checkpoint that it went on from; 0: the start of the run."""
    last: int
    """The iteration that it was to go on to."""
    ranks: int
    plan: str
    """`plan.kind`."""
    host: str
    """Of rank 0."""
    packages: Mapping[str, str]
    """Versions by distribution."""
    ended: datetime | None = None
    """None as long as it goes on, and for ever if it was killed."""
    how: Literal["done", "stopped", "failed"] | None = None
    """`stopped`: between two iterations, because it was asked to; `failed`: by the error in `why`."""
    why: str = ""
    """The signal's name where it was stopped, one line where it failed."""
    done: int | None = None
    """The iteration that was done when it ended."""

    @property
    def seconds(self) -> float | None:
        """How long it took, from when its ranks had met to its end; None without an end."""
        return None if self.ended is None else (self.ended - self.begun).total_seconds()


class Attempt:
    """What `record_attempt` is told of a run that goes on."""

    run: "Run | None" = None
    """As soon as there is one."""


@contextmanager
def record_attempt(folder: RunFolder, iteration: int, last: int, ranks: int, plan: str) -> Iterator[Attempt]:
    """Notes that a run is started now, and afterwards how it ended. For rank 0; arguments as in `Start`."""
    start = {"iteration": iteration, "last": last, "ranks": ranks, "plan": plan, "host": platform.node()}
    _add(folder, {"event": "start", "time": _now(), **start, "packages": packages()})
    carried = Attempt()
    how, why = "done", ""
    try:
        yield carried
        if carried.run is not None and carried.run.stopped:
            how, why = "stopped", _signal()
    except StoppedEarly:
        how, why = "stopped", _signal()
        raise
    except BaseException as error:
        how, why = "failed", _told(error)
        raise
    finally:
        done = iteration if carried.run is None else carried.run.done
        with suppress(OSError):  # a full disk, say, is what ended it, and is told already
            _add(folder, {"event": "end", "time": _now(), "iteration": done, "how": how, "why": why})


def read_starts(folder: RunFolder) -> list[Start]:
    """All starts of a run, the first one first. Lines that are no such objects are left out; a run of an older lockstep has none."""
    path = folder.path / _FILE
    starts: list[Start] = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
            entry = json.loads(line)
            time = datetime.fromisoformat(entry["time"])
            if entry["event"] == "start":
                numbers = {name: int(entry[name]) for name in ("iteration", "last", "ranks")}
                texts = {name: str(entry[name]) for name in ("plan", "host")}
                starts.append(Start(begun=time, **numbers, **texts, packages=dict(entry["packages"])))  # type: ignore[arg-type]
            elif entry["event"] == "end" and starts and starts[-1].ended is None:
                ending = {"how": entry["how"], "why": str(entry["why"]), "done": int(entry["iteration"])}
                starts[-1] = replace(starts[-1], ended=time, **ending)
    return starts


def _told(error: BaseException) -> str:
    """In one line; faults of our own say by themselves what happened."""
    line = " ".join(str(error).split())
    return line if type(error).__module__.startswith("lockstep.") else f"{type(error).__name__}: {line}".rstrip(": ")


def _add(folder: RunFolder, entry: Mapping[str, object]) -> None:
    path = folder.path / _FILE
    before = path.read_bytes() if path.exists() else b""
    write_aside(path, before + f"{json.dumps(entry)}\n".encode())


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _signal() -> str:
    number = asked_to_stop()
    return signal.Signals(number).name if number else "a signal to another rank"

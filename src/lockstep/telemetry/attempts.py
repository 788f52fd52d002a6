"""Log of the starts and ends of a run, `starts.jsonl`: when, with which ranks, on which host, and how each attempt ended.

The file holds one JSON object per start and at least one per end. A start without an end is still running, or its rank 0 was killed.
"""

import json
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lockstep.files import read_file, write_atomically
from lockstep.messages import print_warning
from lockstep.processes.host_name import host_name
from lockstep.processes.portable import is_portable
from lockstep.run.environment import packages, processor_type
from lockstep.run.folder import RunFolder
from lockstep.run.stop import StoppedEarly, asked_to_stop

if TYPE_CHECKING:
    from lockstep.run.run import TrainingRun

__all__ = ["Attempt", "Start", "read_starts", "record_attempt", "record_fault"]

_FILE = "starts.jsonl"
_LIMIT = 2**26
"""Largest size of the file in bytes. A start and its end take less than 1 KB."""


@dataclass(frozen=True)
class Start:
    """One start of a run, and how that attempt ended."""

    begun: datetime
    """Start time in UTC."""
    iteration: int
    """Iteration of the checkpoint that was resumed; 0 means a new run."""
    last: int
    """Iteration at which training was to end."""
    ranks: int
    plan: str
    """Value of `plan.kind`."""
    host: str
    """Host name of rank 0."""
    packages: Mapping[str, str]
    """Package versions, by name of the distribution."""
    processor: str = ""
    """Type of the processor of rank 0, as `processor_type` returns it; empty in runs of an older lockstep."""
    hook: str = ""
    """Function that was called after each iteration, as `module:function`; empty if there was none."""
    ended: datetime | None = None
    """End time in UTC; None if the attempt is still running or was killed."""
    how: Literal["done", "stopped", "failed"] | None = None
    """`done`: training was complete; `stopped`: by a signal; `failed`: by the error in `why`; None without an end."""
    why: str = ""
    """Name of the signal for `stopped`, one line about the error for `failed`."""
    done: int | None = None
    """Last completed iteration when the attempt ended."""

    @property
    def seconds(self) -> float | None:
        """Duration in seconds, from when all ranks were connected to the end; None without an end."""
        return None if self.ended is None else (self.ended - self.begun).total_seconds()


class Attempt:
    """Handle through which `record_attempt` reads the run. `run` is None until the caller has created the run."""

    run: "TrainingRun | None" = None


@contextmanager
def record_attempt(
    folder: RunFolder, iteration: int, last: int, ranks: int, plan: str, hook: str = ""
) -> Iterator[Attempt]:
    """Append a start to `starts.jsonl` now, and its end when the context exits.

    For rank 0 only. The arguments after `folder` are fields of `Start`. A line on standard error says so if the start before had a hook,
    and this one has none.
    """
    before = read_starts(folder)
    if before and before[-1].hook and not hook:
        text = f"the last start of this run called {before[-1].hook} after each iteration, and this one does not"
        print_warning(f"{text}; give it again if it should")
    start = {"iteration": iteration, "last": last, "ranks": ranks, "plan": plan, "host": host_name()}
    here = {"packages": packages(), "processor": processor_type(is_portable())}
    hooks = {"hook": hook} if hook else {}
    _append(folder, {"event": "start", "time": _now(), **start, **hooks, **here})
    attempt = Attempt()
    how, why = "done", ""
    try:
        yield attempt
        if attempt.run is not None and attempt.run.stopped:
            how, why = "stopped", _signal_name()
    except StoppedEarly:
        how, why = "stopped", _signal_name()
        raise
    except BaseException as error:
        how, why = "failed", _error_line(error)
        raise
    finally:
        done = iteration if attempt.run is None else attempt.run.done
        with suppress(OSError):  # if a full disk ended the run, that error is already being raised
            _append(folder, {"event": "end", "time": _now(), "iteration": done, "how": how, "why": why})


def record_fault(folder: RunFolder, why: str, iteration: int, *, reported: bool) -> None:
    """Append the end of the newest start if rank 0 did not write one, or recorded only that another rank was lost.

    `why` is one line, `iteration` the last one that was begun. `reported` is True if a rank has reported the fault itself, in more detail.
    """
    starts = read_starts(folder)
    if starts and (starts[-1].ended is None or (starts[-1].how == "failed" and not reported)):
        with suppress(OSError):
            done = max(iteration - 1, starts[-1].iteration)
            _append(folder, {"event": "end", "time": _now(), "iteration": done, "how": "failed", "why": why})


def read_starts(folder: RunFolder) -> list[Start]:
    """Return all starts of a run, oldest first. Skip broken lines; a run of an older lockstep has no starts."""
    path = folder.path / _FILE
    starts: list[Start] = []
    for line in _read(path).splitlines():
        with suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
            entry = json.loads(line)
            time = datetime.fromisoformat(entry["time"])
            if entry["event"] == "start":
                numbers = {name: int(entry[name]) for name in ("iteration", "last", "ranks")}
                texts = {name: str(entry[name]) for name in ("plan", "host")}
                texts |= {name: str(entry.get(name, "")) for name in ("processor", "hook")}
                starts.append(Start(begun=time, **numbers, **texts, packages=dict(entry["packages"])))  # type: ignore[arg-type]
            elif (
                entry["event"] == "end" and starts and starts[-1].how in (None, "failed")
            ):  # the launcher may add the cause
                ending = {"how": entry["how"], "why": str(entry["why"]), "done": int(entry["iteration"])}
                starts[-1] = replace(starts[-1], ended=time, **ending)
    return starts


def _error_line(error: BaseException) -> str:
    """Format an error as one line, with the type name except for lockstep's own errors, whose messages are complete."""
    line = " ".join(str(error).split())
    return line if type(error).__module__.startswith("lockstep.") else f"{type(error).__name__}: {line}".rstrip(": ")


def _append(folder: RunFolder, entry: Mapping[str, object]) -> None:
    path = folder.path / _FILE
    write_atomically(path, _read(path) + f"{json.dumps(entry)}\n".encode())


def _read(path: Path) -> bytes:
    """Return the content of the file; nothing if there is none, or something else under its name, which `_append` replaces."""
    with suppress(OSError):
        return read_file(path, _LIMIT)
    return b""


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _signal_name() -> str:
    number = asked_to_stop()
    return signal.Signals(number).name if number else "a signal to another rank"

"""Commands in subprocesses that stop with this program: signals are forwarded, and a kill ends them too."""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from lockstep.processes.parent import die_with_parent
from lockstep.run.stop import asked_to_stop

_POLL = 0.05


class Stopped(Exception):
    """A signal asked this program to stop."""


def call(command: Sequence[str], log: Path) -> None:
    """Run a command with one thread per process and append its output to `log`.

    Raises Stopped if a signal stopped it; the command had time to save its work. Raises RuntimeError, with the last
    line of its output, if it fails.
    """
    if asked_to_stop():
        raise Stopped
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            # Ctrl-C in a terminal reaches all processes of its group; here only this program forwards signals
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )
        forwarded = False
        while process.poll() is None:
            if asked_to_stop() and not forwarded:
                process.terminate()
                forwarded = True
            time.sleep(_POLL)
    if asked_to_stop():
        raise Stopped
    if process.returncode:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        raise RuntimeError(
            f"{' '.join(command)} ended with code {process.returncode}: {lines[-1] if lines else 'no output'}"
        )


def run_all(jobs: int, work: Sequence[Callable[[], str]]) -> int:
    """Call all functions, `jobs` at a time, and print the line that each returns or the error that it raises.

    Return the exit code: 0 if all succeeded, 75 if a signal stopped the program, else 1.
    """

    def attempt(function: Callable[[], str]) -> int:
        try:
            print(function(), flush=True)
        except Stopped:
            return 75
        except (OSError, RuntimeError) as error:
            print(f"failed: {error}", flush=True)
            return 1
        return 0

    with ThreadPoolExecutor(jobs) as pool:
        codes = set(pool.map(attempt, work))
    if 75 in codes:
        print("stopped; the same command continues", flush=True)
    return 75 if 75 in codes else max(codes, default=0)

"""Other processes that this one starts. They end with it, however it ends."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO

from lockstep.processes.parent import die_with_parent

__all__ = ["Failed", "child", "own", "own_environment"]


class Failed(RuntimeError):
    """A process did not do its work. The message has its last words."""


def own(*words: str) -> list[str]:
    """The command that runs a module of this installation: its name, then its arguments."""
    return [sys.executable, "-P", "-m", *words]


def own_environment() -> dict[str, str]:
    """Variables with which `own` finds what this process finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}  # noqa: PTH109


@contextmanager
def child(
    command: Sequence[str], environment: Mapping[str, str], succeeds: Sequence[int] = (0,), reads: bool = False
) -> Iterator["subprocess.Popen[str]"]:
    """A started process, whose output can be read; with `reads`, it reads what is written to its input.

    At the end of the block it is waited for; where an exception ends the block, it is killed. Raises Failed when it ends with
    another code than those of `succeeds`.
    """
    with tempfile.TemporaryFile("w+") as errors:
        try:
            process = subprocess.Popen(
                command,
                env=dict(environment),
                stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                preexec_fn=partial(die_with_parent, os.getpid()),
            )
        except OSError as error:
            raise Failed(f"{command[0]} can't be run: {error.strerror}") from None
        try:
            yield process
        except BaseException:
            process.kill()
            process.communicate()
            raise
        process.communicate()  # reads what is left, so that it can end
        if process.returncode not in succeeds:
            raise Failed(f"{' '.join(command)} ended with code {process.returncode}: {_last_words(errors)}")


def _last_words(errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return lines[-1] if lines else "it said nothing"

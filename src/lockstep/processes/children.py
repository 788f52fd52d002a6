"""Child processes with captured output. They end with this process, however it ends."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import IO

from lockstep.processes.parent import die_with_parent

__all__ = ["ProcessFailed", "child", "module_command", "module_environment"]


class ProcessFailed(RuntimeError):
    """A child process failed. The message has the last line that it wrote to standard error."""


def module_command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a module of this installation with `arguments`."""
    return [sys.executable, "-P", "-m", module, *arguments]


def module_environment() -> dict[str, str]:
    """Return the environment in which a `module_command` finds the modules that this process finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}  # noqa: PTH109


@contextmanager
def child(
    command: Sequence[str], environment: Mapping[str, str], succeeds: Sequence[int] = (0,), reads: bool = False
) -> Iterator["subprocess.Popen[str]"]:
    """Start a process and yield it. Its standard output is a pipe. Its standard input is a pipe if `reads`, else empty.

    At the end of the block, wait for the process; if the block raises an exception, kill it. Raises ProcessFailed if
    the command can't be run, or if its exit code is not in `succeeds`.
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
            raise ProcessFailed(f"{command[0]} can't be run: {error.strerror}") from None
        try:
            yield process
        except BaseException:
            process.kill()
            process.communicate()
            raise
        process.communicate()  # reads the rest of the output: a full pipe would block the process
        if process.returncode not in succeeds:
            raise ProcessFailed(f"{' '.join(command)} ended with code {process.returncode}: {_last_line(errors)}")


def _last_line(errors: IO[str]) -> str:
    errors.seek(0)
    lines = [line.strip() for line in errors if line.strip()]
    return lines[-1] if lines else "no error message"

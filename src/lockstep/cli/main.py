"""The command `lockstep`: run a subcommand, and report errors in one line."""

import errno
import gc
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module

from lockstep import __version__
from lockstep.processes.exit_codes import BAD_INPUT, DONE, FAILED, IN_USE, INTERRUPTED, PIPE_CLOSED
from lockstep.processes.heartbeat import set_exit_code

__all__ = ["main"]

COMMANDS = {
    "train": "train an agent: from a preset, a config file or flags",
    "sweep": "train over seeds and values, or search for values; resumable",
    "resume": "resume an interrupted run, on any number of ranks",
    "fetch": "download a run from object storage",
    "runs": "list runs with their state and newest numbers",
    "watch": "follow a run that was started elsewhere",
    "dashboard": "show all runs in the browser, live",
    "play": "show a trained agent in a window, or record a video",
    "eval": "evaluate a trained agent on new episodes",
    "digest": "print the digest of a run's weights",
    "diff": "find the first iteration where two runs differ",
    "verify": "train a run again, and compare its digests with the recorded ones",
    "replay": "repeat a gradient step that was not finite, by operation",
    "export": "export a policy as one file that does not need lockstep",
    "plot": "plot runs: learning curves, the policy, an episode, timing",
    "report": "write a report of a run as one HTML file",
    "push": "upload the agent of a run to the Hugging Face Hub",
    "bench": "measure training speed, or predict it for many ranks",
    "presets": "list the presets, or print one",
    "config": "print the merged config of a preset, a file and flags",
    "envs": "list the environments",
    "check": "check an environment: API, determinism, speed of each engine",
    "doctor": "check the installation and the available features",
    "completion": "print a script that completes commands, flags and runs in a shell",
}
_COMPLETION = "candidates"
"""Command that the scripts of `lockstep completion` call."""
_CHILDREN = ("rank", "video", "track", "evaluator", "storer")
"""Commands of processes that lockstep starts, with environment variables that nobody else sets."""
_STORAGE_ERRORS = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.ENXIO),
        *(errno.EACCES, errno.EPERM, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG),
    }
)
"""Errors of files and disks, which users can do something about. Any other OSError is a bug and is shown with its traceback."""
_GC_THRESHOLD = 100_000
"""Number of new objects after which Python collects garbage. With the default, 700, collections take a tenth of the time of importing
PyTorch, although imported objects stay alive."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command of `argv`, by default `sys.argv[1:]`, and return its exit code (see `processes/exit_codes.py`)."""
    gc.set_threshold(_GC_THRESHOLD)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" instead of ending the program
    code = _run(sys.argv[1:] if argv is None else list(argv))
    set_exit_code(code)
    return code


def _run(argv: list[str]) -> int:
    """Run the command, report an error in one line, and return the exit code."""
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
    except (ValueError, RuntimeError) as error:
        code = _exit_code(error)
        for trace in getattr(error, "__notes__", ()):  # stack traces of the user's own code
            print(trace, file=sys.stderr)
        if isinstance(error, RuntimeError) and error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        print(f"lockstep: {' '.join(str(error).split())}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        print("lockstep: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # otherwise Python's own flush at exit fails again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        if error.errno not in _STORAGE_ERRORS:
            raise
        location = "" if error.filename is None else f"{error.filename}: "
        with suppress(OSError):  # stderr may be a file on the same full disk
            print(f"lockstep: {location}{error.strerror}", file=sys.stderr)
        return FAILED
    return code


def _exit_code(error: ValueError | RuntimeError) -> int:
    """Return the exit code of an error that has one; raise any other error again."""
    if isinstance(error, ValueError):
        from lockstep.run.folder import RunInUse

        return IN_USE if isinstance(error, RunInUse) else BAD_INPUT
    from lockstep.experiment.start import exit_codes_by_error

    code = exit_codes_by_error().get(type(error))
    if code is None:
        raise error
    return code


def _dispatch(argv: list[str]) -> int:
    if not argv or argv[0] in ("-h", "--help", "help"):
        print(_help())
        return DONE if argv else BAD_INPUT
    command = argv[0]
    if command in ("-V", "--version", "version"):
        print(f"lockstep {__version__}")
        return DONE
    is_child = command in _CHILDREN and "LOCKSTEP_PARENT" in os.environ
    if command not in COMMANDS and command != _COMPLETION and not is_child:
        close = get_close_matches(command, (*COMMANDS, "--help", "--version"), 1)
        raise ValueError(
            f"{command}: unknown command; "
            + (f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}")
        )
    code = import_module(f"lockstep.cli.{command}").main(argv[1:])
    assert isinstance(code, int)
    return code


def _help() -> str:
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {command:<{width}}  {line}" for command, line in COMMANDS.items())
    return (
        "usage: lockstep COMMAND …\n\nDistributed PPO: the same experiment gives the same policy, bit for bit, on any\n"
        f"number of processes.\n\n{commands}\n\n"
        "`lockstep COMMAND --help` shows the options of a command.\nTry: lockstep train cartpole"
    )

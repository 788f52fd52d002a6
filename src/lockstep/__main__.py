"""`python -m lockstep` is the command `lockstep`, also for torchrun."""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

from lockstep.cli.main import main

__all__ = ["command"]


def command() -> NoReturn:
    """The command: `main`, then the end of the process.

    Python would first take PyTorch's modules apart, piece by piece, which takes as long as several updates.
    """
    code = main()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # it may be closed
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    command()

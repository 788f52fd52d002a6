"""Entry point of `python -m lockstep` and of the command `lockstep`. torchrun starts it as well."""

import atexit
import os
import sys
from contextlib import suppress
from typing import NoReturn

from lockstep.cli.main import main
from lockstep.run.stop import listen

__all__ = ["command"]


def command() -> NoReturn:
    """Run the command line and end the process with its exit code, after exit handlers and a flush of the output streams.

    The interpreter's cleanup is skipped: freeing PyTorch's modules takes as long as several updates.
    """
    if sys.argv[1:2] in (["train"], ["resume"]):
        listen(
            announce=False
        )  # what these commands import takes seconds, in which a signal must not kill the process silently
    # PyTorch prints warnings of its sockets, of several lines each, where lockstep reports the lost rank in one line
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    code = main()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):  # the stream may be closed
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    command()

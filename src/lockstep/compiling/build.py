"""Building libraries with the C++ compiler, in child processes, into the cache."""

import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from lockstep.compiling.cache import clean_up, lock_key, store
from lockstep.compiling.interfaces import InterfaceMissing
from lockstep.processes.heartbeat import waiting
from lockstep.processes.parent import run_in_child

__all__ = ["CompilerFailed", "build", "interface_problem"]

_BUILT, _ERROR, _MISSING = "built.so", "error.txt", "missing.txt"


class CompilerFailed(RuntimeError):
    """A formula could not be compiled or loaded, for example because the C++ compiler is missing."""


def build(make: Callable[[Path], Path], library: Path, check: Callable[[], None]) -> None:
    """Build `library` in a child process. `make` creates the library somewhere in a folder and returns its path. The caller holds the lock.

    If there is a GPU, build in this process, because CUDA does not work in a forked process. `check` is not called then. Raises
    CompilerFailed.
    """
    clean_up(library)
    with _build_folder(library) as folder:
        work = partial(_make, make, folder)
        if _run_here(work) if torch.cuda.is_available() else run_in_child(work, check):
            log = library.parent / "failure.log"
            error, missing = folder / _ERROR, folder / _MISSING
            if missing.exists():
                raise CompilerFailed(interface_problem(missing.read_text()))
            log.write_text(error.read_text() if error.exists() else "the compiling process was killed")
            raise CompilerFailed(
                f"runtime.compile is 'on': the compilation failed, see {log}; use --runtime.compile off in a new run"
            )
        store(folder / _BUILT, library)


def interface_problem(problem: str) -> str:
    """Return the message for a private interface of PyTorch that is missing."""
    return f"runtime.compile is 'on': {problem}, or use --runtime.compile off in a new run"


def _make(make: Callable[[Path], Path], folder: Path) -> None:
    """Make the library. If this fails, write the compiler's message and raise."""
    warnings.simplefilter("ignore")
    try:
        built = make(folder)
    except InterfaceMissing as error:
        (folder / _MISSING).write_text(str(error))
        raise
    except BaseException as error:
        (folder / _ERROR).write_text(str(error))
        raise
    shutil.copy(str(built), folder / _BUILT)


def _run_here(work: Callable[[], None]) -> int:
    """Run `work` in this process, and return 1 if it raised, else 0."""
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings(), waiting():
            work()
    except Exception:
        return 1  # `work` has written the message to a file
    finally:
        torch.set_num_threads(threads)
    return 0


@contextmanager
def _build_folder(library: Path) -> Iterator[Path]:
    previous = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with tempfile.TemporaryDirectory(
        dir=library.parent, prefix=f"building-{lock_key(library)}-", ignore_cleanup_errors=True
    ) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if previous is None:
                del os.environ["TORCHINDUCTOR_CACHE_DIR"]
            else:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = previous

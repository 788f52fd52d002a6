"""Building libraries with the C++ compiler, in child processes, into the cache."""

import os
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from lockstep.compiling.cache import clean_up, lock_key, probe_folder, release, store, try_lock
from lockstep.compiling.interfaces import InterfaceMissing
from lockstep.processes.cores import usable_cores
from lockstep.processes.heartbeat import waiting
from lockstep.processes.parent import Child

__all__ = ["CompilerFailed", "Make", "build_missing", "interface_problem"]

Make = Callable[[Path], Path]
"""Function that creates a library somewhere in a folder, and returns its path."""

_POLL = 0.02
"""Seconds between two looks at the child processes and the locks."""
_BUILT, _ERROR, _MISSING = "built.so", "error.txt", "missing.txt"


class CompilerFailed(RuntimeError):
    """A formula could not be compiled or loaded, for example because the C++ compiler is missing."""


def build_missing(
    makes: Mapping[Path, Make],
    find_problem: Callable[[Path], str | None],
    check: Callable[[], None],
    announce: Callable[[], None] = lambda: None,
) -> None:
    """Build the libraries of `makes` that are missing or damaged: at the same time, in at most one child process per core.

    `find_problem` returns None if a library is intact, "" if it is missing, else the defect. Libraries that another process is building are
    waited for. `check` is called many times a second meanwhile, and may raise to stop; `announce` is called before the wait. If there is
    a GPU, this process builds one library after another, because CUDA does not work in a forked process, and does not call `check`.
    Raises CompilerFailed, and CacheUnusable if the folder of the libraries can't be written.
    """
    waiting = {library: make for library, make in makes.items() if find_problem(library) is not None}
    if not waiting:
        return
    announce()
    limit = 1 if torch.cuda.is_available() else usable_cores()
    builds: list[_Build] = []
    try:
        while waiting or builds:
            if len(builds) < limit and (build := _start_next(waiting, find_problem)):
                builds.append(build)
            for build in [build for build in builds if build.is_done()]:
                build.close()
                builds.remove(build)
            check()
            time.sleep(_POLL)
    finally:
        for build in builds:
            build.close()


def _start_next(waiting: dict[Path, Make], find_problem: Callable[[Path], str | None]) -> "_Build | None":
    """Start to build the first library that no other process is building, and remove it from `waiting`, as well as those that are complete by now."""
    for library in [*waiting]:
        lock = try_lock(library)
        if lock is None:
            continue
        make = waiting.pop(library)
        problem = find_problem(library)
        if problem is None:
            release(lock)
            continue
        if problem:
            print(f"{library} {problem}; compiling it again", file=sys.stderr, flush=True)
        return _Build(library, make, lock)
    return None


class _Build:
    """The building of one library, whose lock is held meanwhile."""

    def __init__(self, library: Path, make: Make, lock: int) -> None:
        """Start to build, or build if there is a GPU. `lock` is the descriptor of the lock, which `close` releases."""
        self._library = library
        self._lock = lock
        clean_up(library)
        self._folder = Path(tempfile.mkdtemp(dir=library.parent, prefix=f"building-{lock_key(library)}-"))
        work = partial(_make, make, self._folder, probe_folder(library))
        self._child = None if torch.cuda.is_available() else Child(work)
        self._code = _run_here(work) if self._child is None else None

    def is_done(self) -> bool:
        """Return True if the library has been built, and put it into the cache. Raises CompilerFailed if it can't be built."""
        code = self._code if self._child is None else self._child.poll()
        if code == 0:
            store(self._folder / _BUILT, self._library)
        elif code is not None:
            raise CompilerFailed(self._failure())
        return code == 0

    def _failure(self) -> str:
        log = self._library.parent / "failure.log"
        error, missing = self._folder / _ERROR, self._folder / _MISSING
        if missing.exists():
            return interface_problem(missing.read_text())
        log.write_text(error.read_text() if error.exists() else "the compiling process was killed")
        return f"runtime.compile is 'on': the compilation failed, see {log}; use --runtime.compile off in a new run"

    def close(self) -> None:
        """Stop building, if it goes on, and release the lock."""
        if self._child is not None:
            self._child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        release(self._lock)


def interface_problem(problem: str) -> str:
    """Return the message for a private interface of PyTorch that is missing."""
    return f"runtime.compile is 'on': {problem}, or use --runtime.compile off in a new run"


def _make(make: Make, folder: Path, probes: Path) -> None:
    """Make the library. If this fails, write the compiler's message and raise."""
    warnings.simplefilter("ignore")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(probes)
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
    threads, cache = torch.get_num_threads(), os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    try:
        with warnings.catch_warnings(), waiting():
            work()
    except Exception:
        return 1  # `work` has written the message to a file
    finally:
        torch.set_num_threads(threads)
        os.environ.pop("TORCHINDUCTOR_CACHE_DIR")
        if cache is not None:
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    return 0

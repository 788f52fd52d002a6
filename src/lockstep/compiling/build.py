"""Building libraries with the C++ compiler, in child processes, into the cache."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from lockstep.compiling.cache import clean_up, find_defect, lock_key, release, store, try_lock
from lockstep.processes.parent import Child

__all__ = ["CompilerFailed", "build_missing"]

_POLL = 0.02
"""Seconds between two looks at the child processes and the locks."""
_BUILT, _ERROR = "built.so", "error.txt"


class CompilerFailed(RuntimeError):
    """The library of the interpreter could not be built or loaded, for example because the C++ compiler is missing."""


def build_missing(
    commands: Mapping[Path, Sequence[str]], check: Callable[[], None], announce: Callable[[], None] = lambda: None
) -> None:
    """Build the libraries of `commands` that are missing or damaged, at the same time.

    The name of the file to write is added to each command. Libraries that another process is building are waited for. `check` is called
    many times a second meanwhile, and may raise to stop; `announce` is called before the wait. Raises CompilerFailed, and CacheUnusable if
    the folder of the libraries can't be written.
    """
    waiting = {library: command for library, command in commands.items() if find_defect(library) is not None}
    if not waiting:
        return
    announce()
    builds: list[_Build] = []
    try:
        while waiting or builds:
            if build := _start_next(waiting):
                builds.append(build)
            for build in [build for build in builds if build.is_done()]:
                build.close()
                builds.remove(build)
            check()
            time.sleep(_POLL)
    finally:
        for build in builds:
            build.close()


def _start_next(waiting: dict[Path, Sequence[str]]) -> "_Build | None":
    """Start to build the first library that no other process is building, and remove it from `waiting`, as well as those that are complete by now."""
    for library in [*waiting]:
        lock = try_lock(library)
        if lock is None:
            continue
        command = waiting.pop(library)
        problem = find_defect(library)
        if problem is None:
            release(lock)
            continue
        if problem:
            print(f"{library} {problem}; building it again", file=sys.stderr, flush=True)
        return _Build(library, command, lock)
    return None


class _Build:
    """The building of one library, whose lock is held meanwhile."""

    def __init__(self, library: Path, command: Sequence[str], lock: int) -> None:
        """Start to build. `lock` is the descriptor of the lock, which `close` releases."""
        self._library = library
        self._lock = lock
        with ExitStack() as stack:
            stack.callback(release, lock)
            clean_up(library)
            self._folder = Path(tempfile.mkdtemp(dir=library.parent, prefix=f"building-{lock_key(library)}-"))
            stack.callback(shutil.rmtree, self._folder, ignore_errors=True)
            self._child = Child(partial(_compile, command, self._folder))
            stack.pop_all()

    def is_done(self) -> bool:
        """Return True if the library has been built, and put it into the cache. Raises CompilerFailed if it can't be built."""
        code = self._child.poll()
        if code == 0:
            store(self._folder / _BUILT, self._library)
        elif code is not None:
            raise CompilerFailed(self._failure())
        return code == 0

    def _failure(self) -> str:
        log, error = self._library.parent / "failure.log", self._folder / _ERROR
        text = error.read_text() if error.exists() else "the compiling process was killed"
        try:
            log.write_text(text)
        except OSError as problem:
            return f"runtime.compile is 'on': the compilation failed ({' '.join(text.split())}), and {log} can't be written ({problem.strerror})"
        return f"runtime.compile is 'on': the compilation failed, see {log}; use --runtime.compile off in a new run"

    def close(self) -> None:
        """Stop building, if it continues, and release the lock."""
        self._child.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        release(self._lock)


def _compile(command: Sequence[str], folder: Path) -> None:
    """Run the compiler. If it fails, write its message and raise."""
    try:
        # a compiler that is killed leaves its temporary files: they must be in the folder, which is removed
        finished = subprocess.run(
            [*command, str(folder / _BUILT)],
            env={**os.environ, "TMPDIR": str(folder)},
            capture_output=True,
            text=True,
            check=False,
            errors="replace",
        )
        if finished.returncode:
            raise RuntimeError(finished.stderr)
    except BaseException as error:
        (folder / _ERROR).write_text(str(error))
        raise

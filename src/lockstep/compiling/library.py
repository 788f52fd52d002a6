"""The library of the interpreter: part of the wheel, or built once with the C++ compiler and kept in the cache.

This module does not import PyTorch.
"""

import ctypes
import hashlib
import os
import platform
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from lockstep.compiling.build import CompilerFailed, build_missing
from lockstep.compiling.cache import CacheUnusable, cache_folder, check_folder
from lockstep.compiling.compiler import SOURCES, find_compiler, library_command, library_name, variants
from lockstep.processes.portable import missing_instructions

__all__ = ["interpreter_problem", "is_prebuilt", "load_interpreter", "loaded_interpreter"]

_HERE = Path(__file__).parent
_loaded: list[ctypes.CDLL] = []
"""The library that this process uses, if it has loaded one."""


def interpreter_problem() -> str | None:
    """Return the reason why the interpreter does not work on this host; None if it does."""
    problem = missing_instructions(("avx2", "fma")) if "avx2" in variants() else None
    if problem is not None:
        return problem
    if find_compiler() is None and not is_prebuilt():
        return "there is no C++ compiler here (g++, or what CXX names)"
    return None


def load_interpreter(
    check: Callable[[], None] = lambda: None, announce: Callable[[], None] = lambda: None
) -> ctypes.CDLL:
    """Load the fastest library that this processor can run. If there is none, build it first, which takes seconds.

    `check` is called many times a second meanwhile, and may raise to stop. `announce` is called before the wait, whichever process builds.
    Raises CompilerFailed, in one line.
    """
    libraries = _prebuilt() if is_prebuilt() else _built(check, announce)
    first, *faster = (_open(library) for library in libraries.values())
    library = faster[0] if faster and first.lockstep_has_avx512() else first
    _loaded[:] = [library]
    return library


def loaded_interpreter() -> ctypes.CDLL | None:
    """Return what `load_interpreter` has loaded in this process; None before its first call."""
    return _loaded[0] if _loaded else None


def is_prebuilt() -> bool:
    """Return True if lockstep was installed with the libraries."""
    return all(library.exists() for library in _prebuilt().values())


def _prebuilt() -> dict[str, Path]:
    """Return the paths that the libraries of a wheel have, by variant."""
    return {variant: _HERE / library_name(variant) for variant in variants()}


def _built(check: Callable[[], None], announce: Callable[[], None]) -> dict[str, Path]:
    """Return the paths of the libraries in the cache, by variant, and build those that are missing or damaged."""
    folder = cache_folder()
    content = b"".join(source.read_bytes() for source in SOURCES)
    libraries, commands = {}, {}
    for variant in variants():
        command = library_command(variant)
        digest = hashlib.sha256(content + " ".join([platform.machine(), *command[1:-2]]).encode()).hexdigest()
        libraries[variant] = folder / f"{digest[:32]}.so"
        commands[libraries[variant]] = command
    try:
        check_folder(folder)
        build_missing(commands, check, announce)
    except CacheUnusable as error:
        raise CompilerFailed(
            f"runtime.compile is 'on': the cache folder {error}; set LOCKSTEP_CACHE to another folder"
        ) from None
    for library in libraries.values():
        with suppress(OSError):  # a cache that another user fills may be read-only
            os.utime(library)
    return libraries


@cache
def _open(library: Path) -> ctypes.CDLL:
    try:
        opened = ctypes.CDLL(str(library))
    except OSError as error:
        raise CompilerFailed(
            f"runtime.compile is 'on': {library} can't be opened ({error}); use --runtime.compile off in a new run"
        ) from None
    for run in (opened.lockstep_run_float, opened.lockstep_run_double):
        run.argtypes, run.restype = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p), None
    for recur in (opened.lockstep_recur_float, opened.lockstep_recur_double):
        recur.argtypes, recur.restype = (*[ctypes.c_int64] * 3, ctypes.c_void_p, ctypes.c_void_p), None
    return opened

"""The C++ compiler of this host, and the commands that build the library of the interpreter.

`hatch_build.py` loads this module when it builds the wheel, so it imports only the standard library.
"""

import os
import platform
import shutil
import sys
from pathlib import Path

__all__ = ["SOURCES", "find_compiler", "library_command", "library_name", "variants"]

_HERE = Path(__file__).parent
SOURCES = tuple(_HERE / name for name in ("interpreter.cpp", "functions.h", "product.h", "strided.h", "vectors.h"))
"""The files from which the library is built."""
_FLAGS = (
    *("-std=c++17", "-O3", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math"),
    *("-fno-exceptions", "-fno-rtti", "-fPIC", "-shared", "-s"),
)
_VARIANTS = {
    "generic": (),
    "avx2": ("-mavx2", "-mfma"),
    "avx512": ("-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mfma", "-mprefer-vector-width=512"),
}
"""Compiler options of the libraries, which all compute the same bits. `generic` is for processors that are not x86-64."""


def find_compiler() -> str | None:
    """Return the path of the C++ compiler: `CXX`, else g++ (clang++ on macOS); None if it is missing."""
    return shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))


def variants() -> list[str]:
    """Return the names of the libraries for this kind of processor, the one for all of them first."""
    return ["avx2", "avx512"] if platform.machine() in ("x86_64", "AMD64") else ["generic"]


def library_name(variant: str) -> str:
    """Return the file name of a library in a wheel."""
    return f"interpreter-{variant}.so"


def library_command(variant: str) -> list[str]:
    """Return the command that builds a library, without the name of the file to write, which comes last."""
    return [find_compiler() or "g++", *_FLAGS, *_VARIANTS[variant], str(SOURCES[0]), "-o"]

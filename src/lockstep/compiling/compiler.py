"""The C++ compiler of this host. This module does not import PyTorch."""

import os
import shutil
import sys

__all__ = ["find_compiler"]


def find_compiler() -> str | None:
    """Return the path of the C++ compiler: `CXX`, else g++ (clang++ on macOS); None if it is missing."""
    return shutil.which(os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++"))

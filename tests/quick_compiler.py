"""A C++ compiler that copies libraries which were built before, so that tests need not wait for the true one."""

from pathlib import Path

from lockstep.compiling import library

_SCRIPT = """#!/bin/sh
echo called >> {folder}/calls
for word; do last=$word; done
case "$*" in *avx512*) from={avx512} ;; *) from={avx2} ;; esac
cp $from $last
"""


def quick_compiler(folder: Path) -> Path:
    """Return the path of the compiler, which is in `folder` and adds a line to `folder`/calls whenever it is called.

    The libraries are those of this session's cache, built from the present sources with the present options.
    """
    built = [*library._built(lambda: None, lambda: None).values()]
    compiler = folder / "compiler"
    compiler.write_text(_SCRIPT.format(folder=folder, avx2=built[0], avx512=built[-1]))
    compiler.chmod(0o755)
    return compiler

"""The allocator of a rank keeps freed memory."""

import resource
import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from lockstep.processes.allocator import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
import ctypes
library = ctypes.CDLL(None)
library.malloc.restype, library.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
def use():
    block = library.malloc(ctypes.c_size_t(40 << 20))
    ctypes.memset(block, 1, 40 << 20)
    library.free(block)
use()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    use()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_memory_is_used_again_without_page_faults(environ: dict[str, str]) -> None:
    faults = {}
    for word in ("keep", "return"):
        command = [sys.executable, "-c", PROGRAM, word]
        faults[word] = int(subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout)
    pages = (40 << 20) // resource.getpagesize()
    assert faults["keep"] < pages / 10
    if faults["return"] < pages:
        pytest.skip("this C library keeps freed memory by default")

"""Environment variables with which libraries give the same bits on every x86-64 processor with AVX2 and FMA.

Libraries select their code by the processor when they are imported or first used. These variables restrict all of them to one instruction
set. Only MKL needs its slowest code for that: it selects faster code by the processor's vendor. Variables take effect only in processes
that have them from their start.
"""

import os
import platform
import sys
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path

from lockstep.processes.parent import own_command

__all__ = [
    "PORTABLE_TYPE",
    "check_portable",
    "is_portable",
    "missing_instructions",
    "portable_environment",
    "portable_problem",
    "portable_variables",
    "restart_portable",
]

PORTABLE_TYPE = "any x86-64 processor with AVX2 and FMA"
"""Name of the processors that give the same bits."""
_INSTRUCTIONS = {"avx2", "fma", "f16c", "bmi2"}
"""Instructions that the selected code uses, as Linux names them."""


@cache
def portable_variables() -> dict[str, str]:
    """Return the environment variables by name."""
    major, minor = (int(part) for part in version("numpy").split(".")[:2])
    groups = "X86_V3" if (major, minor) >= (2, 4) else "SSSE3 SSE41 POPCNT SSE42 AVX F16C FMA3 AVX2"
    return {
        "ATEN_CPU_CAPABILITY": "avx2",  # PyTorch
        "MKL_CBWR": "COMPATIBLE",  # matrix products of PyTorch
        "ONEDNN_MAX_CPU_ISA": "AVX2",  # convolutions of PyTorch
        "OPENBLAS_CORETYPE": "Haswell",  # matrix products of NumPy
        "NPY_ENABLE_CPU_FEATURES": groups,  # functions of NumPy
    }


def portable_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment with the variables, for a process that is about to start. NumPy does not accept features to enable and to disable."""
    kept = {name: value for name, value in environment.items() if name != "NPY_DISABLE_CPU_FEATURES"}
    return {**kept, **portable_variables()}


def is_portable() -> bool:
    """Return True if this process was started with the variables."""
    return all(os.environ.get(name) == value for name, value in portable_variables().items())


def check_portable() -> None:
    """Raise ValueError if this process was not started with the variables."""
    if not is_portable():
        variables = " ".join(f"{name}='{value}'" for name, value in portable_variables().items())
        raise ValueError(f"runtime.bits is 'portable': this process becomes a rank; start it with {variables}")


def portable_problem() -> str | None:
    """Return the reason why this processor can't give portable bits; None if it can."""
    if platform.machine() not in ("x86_64", "AMD64"):
        return f"this processor is {platform.machine()}, not x86-64"
    return missing_instructions(_INSTRUCTIONS)


def missing_instructions(names: Collection[str]) -> str | None:
    """Return, as the description of a problem, which instructions this processor lacks; None if it has all. `names` are those that Linux uses."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "this system does not tell the instructions of its processor in /proc/cpuinfo"
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), [])
    missing = sorted(set(names).difference(flags))
    return f"this processor lacks the instructions {', '.join(missing)}" if missing else None


def restart_portable(argv: Sequence[str]) -> None:
    """Replace this process by `lockstep ARGV` with the variables, unless it has them."""
    if is_portable():
        return
    sys.stdout.flush()
    sys.stderr.flush()
    command = own_command(*argv)
    os.execve(command[0], command, portable_environment(os.environ))

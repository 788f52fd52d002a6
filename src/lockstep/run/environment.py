"""Machine, versions and command of a run, for `environment.json`."""

import platform
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lockstep.processes.host_name import host_name
from lockstep.processes.portable import PORTABLE_TYPE

__all__ = ["describe_environment", "packages", "processor_type"]

_REPORTED = (
    "lockstep-rl",
    "torch",
    "numpy",
    "gymnasium",
    "mujoco",
    "Box2D",
    "envpool",
    "ale-py",
    "opencv-python-headless",
    "safetensors",
    "lightning-fabric",
)


def describe_environment(ranks: int) -> dict[str, object]:
    """Return command, number of ranks, machine and versions, as JSON data."""
    return {
        "command": sys.argv,
        "ranks": ranks,
        "python": platform.python_version(),
        "system": platform.platform(),
        "host": host_name(),
        "processor": _cpuinfo().get("model name") or platform.processor(),
        "packages": packages(),
        "git": _git_commit(),
    }


def packages() -> dict[str, str]:
    """Return the versions of installed packages that the bits of a run may depend on."""
    return {name: found for name in _REPORTED if (found := _version(name))}


@cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def processor_type(portable: bool) -> str:
    """Return what the bits of one set of packages depend on: the processor's model, and the instructions that PyTorch uses.

    With `portable`, for runs with `runtime.bits: portable`, these are the same for all processors that give the same bits.

    A virtual machine may give different processors the same name, so the model is given by its numbers.
    """
    import torch

    if portable:
        return PORTABLE_TYPE
    facts, model = _cpuinfo(), platform.machine()
    if "vendor_id" in facts:
        model = f"{facts['vendor_id']} family {facts.get('cpu family')} model {facts.get('model')}"
    return f"{model}, {torch.backends.cpu.get_cpu_capability()}"


def _cpuinfo() -> dict[str, str]:
    """Return what the system says of the first processor; nothing if it does not say."""
    path = Path("/proc/cpuinfo")
    first = path.read_text().partition("\n\n")[0] if path.exists() else ""
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in first.splitlines())}


def _git_commit() -> str | None:
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None

"""Machine, versions and command of a run, for `environment.json`."""

import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from lockstep.processes.host_name import host_name

__all__ = ["describe_environment", "packages"]

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
        "processor": _processor(),
        "packages": packages(),
        "git": _git_commit(),
    }


def packages() -> dict[str, str]:
    """Return the versions of installed packages that the bits of a run may depend on."""
    return {name: found for name in _REPORTED if (found := _version(name))}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _git_commit() -> str | None:
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None

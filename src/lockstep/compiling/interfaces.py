"""Private interfaces of PyTorch that compiling needs. PyTorch may change them in any version."""

from importlib import import_module
from importlib.metadata import version
from typing import Any

__all__ = ["TORCH_VERSIONS", "InterfaceMissing", "private_interface", "version_problem"]

TORCH_VERSIONS = "torch>=2.13,<2.14"
"""Versions that have these interfaces. The requirement in pyproject.toml is the same."""
_FIRST, _END = (2, 13), (2, 14)


class InterfaceMissing(RuntimeError):
    """The installed PyTorch lacks a private interface that compiling needs."""


def private_interface(module: str, name: str) -> Any:
    """Return the attribute `name`, which may be dotted, of a module of PyTorch. Raises InterfaceMissing, in one line."""
    try:
        value: Any = import_module(module)
        for part in name.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError):
        raise InterfaceMissing(
            f"PyTorch {version('torch')} has no {module}.{name}, which compiling needs; install '{TORCH_VERSIONS}'"
        ) from None
    return value


def version_problem() -> str | None:
    """Return why the installed PyTorch can't compile: its version was not tested. None if it can. PyTorch is not imported."""
    installed = version("torch")
    numbers = tuple(int(part) for part in installed.split(".")[:2] if part.isdigit())
    if _FIRST <= numbers < _END:
        return None
    return f"PyTorch {installed} is not {TORCH_VERSIONS}, whose private interfaces compiling needs"

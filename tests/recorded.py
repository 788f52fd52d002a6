"""Digests that the repository records: they hold on every processor that can give portable bits, for the pinned packages."""

import re
from importlib import metadata
from pathlib import Path

_PACKAGES = ("ale-py", "box2d", "gymnasium", "mujoco", "numpy", "torch")
"""The packages that compute numbers of the recorded runs."""


def _pinned(name: str) -> str:
    text = (Path(__file__).parents[1] / "constraints.txt").read_text()
    found = re.search(rf"^{name}==([^\s+;]+)", text, re.MULTILINE | re.IGNORECASE)
    assert found is not None, f"constraints.txt has no {name}"
    return found[1]


def packages_problem() -> str | None:
    """Return why this installation gives other digests than the recorded ones; None if it gives the same."""
    for name in _PACKAGES:
        try:
            installed = metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            continue
        if installed != _pinned(name):
            return f"digests are recorded for {name} {_pinned(name)}, and {installed} is installed"
    return None

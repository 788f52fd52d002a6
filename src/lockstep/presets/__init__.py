"""Shipped experiments: YAML files whose comments state batch sizes, budget and expected result."""

from difflib import get_close_matches
from importlib.resources import files

import yaml

__all__ = ["expected", "names", "read", "text"]


def names() -> list[str]:
    """Return the names of all presets in alphabetical order."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in files(__name__).iterdir() if entry.name.endswith(".yaml")
    )


def text(name: str) -> str:
    """Return the YAML text of a preset.

    Raises ValueError, naming the nearest preset, if there is none with this name.
    """
    if name not in names():
        close = get_close_matches(name, names(), 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names())}"
        if name.endswith((".yaml", ".yml", ".json", ".gin")):
            hint = "pass a config file with --config"
        raise ValueError(f"{name}: unknown preset; {hint}")
    return (files(__name__) / f"{name}.yaml").read_text(encoding="utf-8")


def read(name: str) -> dict[str, object]:
    """Return the config tree of a preset. Raises ValueError as `text` does."""
    tree = yaml.safe_load(text(name))
    assert isinstance(tree, dict)
    return tree


def expected(name: str) -> str | None:
    """Return the expected result that a preset states in its comment `# Expected:`, or None.

    Raises ValueError as `text` does.
    """
    parts: list[str] = []
    for line in text(name).splitlines():
        words = line.removeprefix("#").strip()
        if line.startswith("# Expected:"):
            parts.append(words.removeprefix("Expected:").strip())
        elif parts and line.startswith("#  "):
            parts.append(words)
        elif parts:
            break
    return " ".join(parts) or None

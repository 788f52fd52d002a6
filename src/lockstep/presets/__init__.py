"""Ready experiments: YAML files with their arithmetic, budget and expected result in comments."""

from difflib import get_close_matches
from importlib.resources import files

import yaml

__all__ = ["expected", "names", "read", "text"]


def names() -> list[str]:
    """Names of all presets, in alphabetical order."""
    return sorted(
        entry.name.removesuffix(".yaml") for entry in files(__name__).iterdir() if entry.name.endswith(".yaml")
    )


def text(name: str) -> str:
    """The YAML of preset `name`. Raises ValueError, naming the nearest, when there is none of that name."""
    if name not in names():
        close = get_close_matches(name, names(), 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(names())}"
        if name.endswith((".yaml", ".yml", ".json", ".gin")):
            hint = "a file of your own is given with --config"
        raise ValueError(f"{name}: unknown preset; {hint}")
    return (files(__name__) / f"{name}.yaml").read_text(encoding="utf-8")


def read(name: str) -> dict[str, object]:
    """The config tree of preset `name`. Raises ValueError as `text` does."""
    tree = yaml.safe_load(text(name))
    assert isinstance(tree, dict)
    return tree


def expected(name: str) -> str | None:
    """What preset `name` says that it reaches, None if it does not say. Raises ValueError as `text` does."""
    found: list[str] = []
    for line in text(name).splitlines():
        words = line.removeprefix("#").strip()
        if line.startswith("# Expected:"):
            found.append(words.removeprefix("Expected:").strip())
        elif found and line.startswith("#  "):
            found.append(words)
        elif found:
            break
    return " ".join(found) or None

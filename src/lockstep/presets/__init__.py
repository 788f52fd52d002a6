"""Shipped experiments: YAML files whose comments state batch sizes, budget and expected result."""

import re
from difflib import get_close_matches
from importlib.resources import files

import yaml

from lockstep.presets.families import FAMILIES, Family

__all__ = ["check_family", "example", "expected", "family", "names", "read", "text"]


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
        elif re.search(r"-v\d+$", name):
            hint = f"for an environment, give --env {name}"
        raise ValueError(f"{name}: unknown preset; {hint}")
    return (files(__name__) / f"{name}.yaml").read_text(encoding="utf-8")


def read(name: str) -> dict[str, object]:
    """Return the config tree of a preset. Raises ValueError as `text` does."""
    tree = yaml.safe_load(text(name))
    assert isinstance(tree, dict)
    return tree


def family(name: str | None) -> Family | None:
    """Return the family of a preset that leaves the environment to the user, or None."""
    return FAMILIES.get(name or "")


def example(name: str | None) -> str | None:
    """Return an environment of the family of a preset, None if the preset has its own environment."""
    chosen = family(name)
    return chosen and chosen.example


def check_family(name: str | None, env_id: str, images: bool, continuous: bool) -> None:
    """Raise ValueError, naming a preset that fits, if the preset is for a family without this environment.

    Args:
        name: The preset. None: none was given, and nothing is checked.
        env_id: The environment, for the message.
        images: True if its observations have images.
        continuous: True if its actions have continuous components.
    """
    chosen = family(name)
    if chosen is None or chosen.fits(images, continuous):
        return
    fitting = next(other for other, family in FAMILIES.items() if family.fits(images, continuous))
    problem = "discrete actions only" if chosen.images in (None, images) else "images" if images else "no images"
    raise ValueError(f"preset {name}: {env_id} has {problem}; use the preset {fitting}")


def expected(name: str) -> str | None:
    """Return the expected result that a preset states in its comment `# Expected:`, or None.

    Raises ValueError as `text` does.
    """
    lines: list[str] = []
    for line in text(name).splitlines():
        content = line.removeprefix("#").strip()
        if line.startswith("# Expected:"):
            lines.append(content.removeprefix("Expected:").strip())
        elif lines and line.startswith("#  "):
            lines.append(content)
        elif lines:
            break
    return " ".join(lines) or None

"""Versions of the config format: the check of a version, the defaults of older ones, and former names."""

import reprlib
from collections.abc import Mapping
from pathlib import Path

from lockstep.config import VERSION

__all__ = ["VALUES_BEFORE", "check_version", "former_defaults", "with_present_names"]

_CHANGED_DEFAULTS: dict[int, dict[str, dict[str, object]]] = {
    1: {
        "rollout": {"steps": 128},
        "policy": {"log_std": 0.0, "squash": False, "normalize_observations": False},
        "ppo": {
            "learning_rate": 3e-4,
            "learning_rate_kl": None,
            "learning_rate_kl_max": 100.0,
            "epochs": 4,
            "minibatches": 4,
            "recompute_advantages": False,
            "normalize_rewards": False,
        },
    }
}
"""Defaults of a version that the next version changed."""
VALUES_BEFORE = {"runtime": {"compile": "off"}}
"""Values of fields for runs that are older than the fields: the config of a run has all fields that existed when it was created."""
_RENAMED = {"curiosity.neighbours": "curiosity.neighbors"}
"""Present names of fields by former names, `section.field`."""
_RENAMED_VALUES = {("plan.correction", "behaviour"): "behavior"}
"""Present values by field and former value."""


def check_version(version: object, path: Path) -> int:
    """Return the version that the file `path` gives. Raises ValueError if it is invalid or newer than `VERSION`."""
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ValueError(f"{path}: version is {reprlib.repr(version)}: it must be a whole number from 1 to {VERSION}")
    if version > VERSION:
        raise ValueError(
            f"{path}: config version {reprlib.repr(version)} is newer than this lockstep reads ({VERSION}): upgrade lockstep"
        )
    return version


def former_defaults(version: int) -> dict[str, dict[str, object]]:
    """Return the defaults of a version that differ from today's: its files mean these if they omit the fields."""
    tree: dict[str, dict[str, object]] = {}
    for changed in (fields for number, fields in sorted(_CHANGED_DEFAULTS.items()) if number >= version):
        for section, fields in changed.items():
            tree[section] = {**fields, **tree.get(section, {})}
    return tree


def with_present_names(tree: Mapping[str, object]) -> dict[str, object]:
    """Return a tree of sections and dotted keys with the present names of fields and values that had others when it was written."""
    renamed: dict[str, object] = {}
    for section, content in tree.items():
        if isinstance(content, Mapping):
            pairs = [_present(f"{section}.{field}", value) for field, value in content.items()]
            renamed[section] = {path.removeprefix(f"{section}."): value for path, value in pairs}
        else:
            path, value = _present(section, content)
            renamed[path] = value
    return renamed


def _present(path: str, value: object) -> tuple[str, object]:
    """Return the present name and value of a field."""
    path = _RENAMED.get(path, path)
    return path, _RENAMED_VALUES.get((path, value), value) if isinstance(value, str) else value

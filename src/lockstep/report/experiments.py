"""Which runs are of the same experiment, and what tells experiments apart."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Experiment", "Recorded", "group"]

_NOT_OF_IT = {
    "version",
    "run.seed",
    "run.name",
    "run.folder",
    "run.progress",
    "run.loggers",
    "run.capture_video",
    "run.keep",
}
"""Fields in which runs of one experiment may differ."""
_SHOWN = 3
"""Fields that a label names, at most."""


@dataclass(frozen=True)
class Recorded:
    """A run as far as pictures need it."""

    name: str
    tree: Mapping[str, Any]
    """The resolved config."""
    metrics: Sequence[Mapping[str, Any]]
    """One row per iteration."""

    @property
    def fields(self) -> dict[str, object]:
        """The config as `section.field: value`."""
        return {
            f"{section}.{field}": value
            for section, content in self.tree.items()
            if isinstance(content, Mapping)
            for field, value in content.items()
        }

    @property
    def experiment(self) -> dict[str, object]:
        """Fields without those in which runs of one experiment may differ."""
        return {name: value for name, value in self.fields.items() if name not in _NOT_OF_IT}


@dataclass(frozen=True)
class Experiment:
    """Runs that differ in nothing but their seed."""

    label: str
    runs: Sequence[Recorded]


def group(runs: Sequence[Recorded]) -> list[Experiment]:
    """Runs by experiment, in the order in which they first appear, each labelled with what tells it from the others."""
    groups: list[list[Recorded]] = []
    for run in runs:
        own = next((known for known in groups if known[0].experiment == run.experiment), None)
        groups.append([run]) if own is None else own.append(run)
    names = _differing([members[0].experiment for members in groups])
    return [Experiment(_label(members, names), members) for members in groups]


def _differing(fields: Sequence[Mapping[str, object]]) -> list[str]:
    """Names of the fields that are not equal everywhere: those that tell most apart come first."""
    known = dict.fromkeys(name for own in fields for name in own)
    kinds = {name: len({_shown(own.get(name)) for own in fields}) for name in known}
    return sorted((name for name in known if kinds[name] > 1), key=lambda name: -kinds[name])


def _label(members: Sequence[Recorded], names: Sequence[str]) -> str:
    fields = members[0].experiment
    parts = [f"{name} {_shown(fields.get(name))}" for name in names[:_SHOWN]] + ["…"] * (len(names) > _SHOWN)
    if not names:
        parts = [members[0].name] if len(members) == 1 else []
    seeds = {_shown(run.fields.get("run.seed")) for run in members}
    if len(members) > 1:
        count = f"{len(members)} {'seeds' if len(seeds) == len(members) else 'runs'}"
        return f"{', '.join(parts)} ({count})" if parts else count
    return ", ".join(parts)


def _shown(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return {"null": "none"}.get(text, text if len(text) <= 30 else f"{text[:29]}…")

"""Grouping of runs by experiment, and labels that name the settings in which the experiments differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Experiment", "RecordedRun", "group_by_experiment"]

_IGNORED = {
    "version",
    "run.seed",
    "run.name",
    "run.folder",
    "run.progress",
    "run.log_every",
    "run.loggers",
    "run.capture_video",
    "run.evaluate_every",
    "run.evaluate_episodes",
    "run.keep",
}
"""Fields in which runs of one experiment may differ."""
_LABEL_FIELDS = 3
"""Largest number of fields in a label."""


@dataclass(frozen=True)
class RecordedRun:
    """Data of a run that figures are drawn from."""

    name: str
    tree: Mapping[str, Any]
    """Resolved config, by section."""
    metrics: Sequence[Mapping[str, Any]]
    """Rows of metrics.jsonl, one per iteration."""
    evaluations: Sequence[Mapping[str, Any]] = ()
    """Rows of evaluations.jsonl, one per evaluated checkpoint."""

    @property
    def fields(self) -> dict[str, object]:
        """Fields of the config, with names like `section.field`."""
        return {
            f"{section}.{field}": value
            for section, content in self.tree.items()
            if isinstance(content, Mapping)
            for field, value in content.items()
        }

    @property
    def experiment(self) -> dict[str, object]:
        """Fields that define the experiment: all except those in which its runs may differ."""
        return {name: value for name, value in self.fields.items() if name not in _IGNORED}


@dataclass(frozen=True)
class Experiment:
    """Runs with the same settings, except for the seed and settings that do not affect training."""

    label: str
    runs: Sequence[RecordedRun]


def group_by_experiment(runs: Sequence[RecordedRun]) -> list[Experiment]:
    """Group runs by experiment, in order of first appearance.

    The label of an experiment names the settings in which the experiments differ.
    """
    groups: list[list[RecordedRun]] = []
    for run in runs:
        members = next((members for members in groups if members[0].experiment == run.experiment), None)
        groups.append([run]) if members is None else members.append(run)
    names = _differing([members[0].experiment for members in groups])
    return [Experiment(_label(members, names), members) for members in groups]


def _differing(experiments: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names of the fields that differ between experiments, those with most distinct values first."""
    names = dict.fromkeys(name for fields in experiments for name in fields)
    distinct = {name: len({_text(fields.get(name)) for fields in experiments}) for name in names}
    return sorted((name for name in names if distinct[name] > 1), key=lambda name: -distinct[name])


def _label(members: Sequence[RecordedRun], names: Sequence[str]) -> str:
    fields = members[0].experiment
    parts = [f"{name} {_text(fields.get(name))}" for name in names[:_LABEL_FIELDS]]
    parts += ["…"] * (len(names) > _LABEL_FIELDS)
    if not names:
        parts = [members[0].name] if len(members) == 1 else []
    seeds = {_text(run.fields.get("run.seed")) for run in members}
    if len(members) > 1:
        count = f"{len(members)} {'seeds' if len(seeds) == len(members) else 'runs'}"
        return f"{', '.join(parts)} ({count})" if parts else count
    return ", ".join(parts)


def _text(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return {"null": "none"}.get(text, text if len(text) <= 30 else f"{text[:29]}…")

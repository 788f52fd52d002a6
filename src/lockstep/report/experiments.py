"""Grouping of runs by experiment, and labels that name the settings in which the experiments differ."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.config import Config
from lockstep.config.decode import encode

__all__ = ["AUTO_RESOLVED", "Experiment", "RecordedRun", "check_environment", "group_by_experiment"]

AUTO_RESOLVED = {
    "plan.shards",
    "policy.log_std",
    "policy.normalize_observations",
    "policy.squash",
    "ppo.minibatches",
    "ppo.normalize_rewards",
    "rollout.sequence_length",
    "runtime.player_device",
}
"""Settings for which None means that the value is chosen when the run is created. `auto` means the same for all settings."""

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
    "run.hooks",
    "env.info_metrics",
}
"""Fields in which runs of one experiment may differ."""
_DEFAULTS = {
    f"{section}.{name}": value for section, fields in encode(Config()).items() for name, value in fields.items()
}
_LABEL_FIELDS = 3
"""Largest number of fields in a label."""
_LONGEST_NAMES = 40
"""Largest number of characters of the names of runs in a label. Longer ones, such as those of sweeps, are left out."""


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
    def title(self) -> str:
        """Name and environment, as the title of a figure."""
        env_id = self.fields.get("env.id")
        return f"{self.name}, {env_id}" if env_id else self.name

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
        return {name: value for name, value in {**_DEFAULTS, **self.fields}.items() if name not in _IGNORED}


@dataclass(frozen=True)
class Experiment:
    """Runs with the same settings, except for the seed and settings that do not affect training."""

    label: str
    runs: Sequence[RecordedRun]


def group_by_experiment(runs: Sequence[RecordedRun]) -> list[Experiment]:
    """Group runs by experiment, in order of first appearance.

    The label of an experiment names the settings in which the experiments differ; those that may have been chosen automatically only if there
    are no others.
    """
    groups: list[list[RecordedRun]] = []
    for run in runs:
        members = next((members for members in groups if members[0].experiment == run.experiment), None)
        groups.append([run]) if members is None else members.append(run)
    differing = _differing([members[0].experiment for members in groups])
    automatic = AUTO_RESOLVED | {name for name, value in _DEFAULTS.items() if value == "auto"}
    names = [name for name in differing if name not in automatic] or differing
    return [Experiment(_label(members, names), members) for members in groups]


def check_environment(runs: Sequence[RecordedRun]) -> None:
    """Raise ValueError if the runs are not all of one environment: their returns could not be compared."""
    ids = {run.fields.get("env.id"): run.name for run in runs}
    if len(ids) > 1:
        (first_id, first_run), (second_id, second_run), *_ = ids.items()
        raise ValueError(
            f"{first_run} is of {first_id}, {second_run} of {second_id}: runs of one environment only can be compared"
        )


def _differing(experiments: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the names of the fields that differ between experiments, those with most distinct values first."""
    names = dict.fromkeys(name for fields in experiments for name in fields)
    distinct = {name: len({json.dumps(fields.get(name)) for fields in experiments}) for name in names}
    return sorted((name for name in names if distinct[name] > 1), key=lambda name: -distinct[name])


def _label(members: Sequence[RecordedRun], names: Sequence[str]) -> str:
    """Return the fields in which an experiment differs from others, and the names of its runs."""
    fields = members[0].experiment
    parts = [f"{name} {_text(fields.get(name))}" for name in names[:_LABEL_FIELDS]]
    settings = ", ".join(parts + ["…"] * (len(names) > _LABEL_FIELDS))
    if len(members) == 1:
        return f"{members[0].name}: {settings}" if settings else members[0].name
    seeds = {_text(run.fields.get("run.seed")) for run in members}
    count = f"{len(members)} {'seeds' if len(seeds) == len(members) else 'runs'}"
    run_names = ", ".join(run.name for run in members)
    runs = f"{count}: {run_names}" if len(run_names) <= _LONGEST_NAMES else count
    return f"{settings} ({runs})" if settings else runs


def _text(value: object) -> str:
    text = value if isinstance(value, str) else f"{value:.4g}" if isinstance(value, float) else json.dumps(value)
    return {"null": "none"}.get(text, text if len(text) <= 30 else f"{text[:29]}…")

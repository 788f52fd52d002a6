"""Members of a sweep: the config and the state of each run."""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.algorithm.plan import default_ranks
from lockstep.config import Config
from lockstep.config.flags import as_flags
from lockstep.experiment.execute import create_run, open_run
from lockstep.experiment.resolve import resolve
from lockstep.experiment.same_experiment import describe_difference
from lockstep.experiment.start import is_complete, resolve_start
from lockstep.run.folder import RunFolder

__all__ = [
    "RUNS",
    "Member",
    "check_folder",
    "is_done",
    "labels",
    "make_member",
    "name_of",
    "prepare",
    "train_arguments",
]

RUNS = "runs"
"""Folder of the runs, in the folder of a sweep."""
_MAX_NAME = 90
"""Largest length of a name."""


@dataclass(frozen=True)
class Member:
    """One run of a sweep."""

    values: Mapping[str, object]
    """Values that identify the run within the sweep: those of the swept fields, and the number of its trial."""
    config: Config
    """Resolved config, with the name and the folder of the run."""
    ranks: int

    @property
    def name(self) -> str:
        """Name of the run and of its folder."""
        return str(self.config.run.name)

    @property
    def folder(self) -> RunFolder:
        """Folder of the run, which may not exist yet."""
        return RunFolder(Path(self.config.run.folder) / self.name)


def make_member(
    config: Config, ranks: int | None, values: Mapping[str, object], folder: Path, name: str, preset: str | None = None
) -> Member:
    """Resolve a config and return the member.

    `ranks` None means the smallest number of ranks that the plan allows. `preset` is the preset of the config, if any.
    Raises ValueError if the config cannot be run.
    """
    config = replace(config, run=replace(config.run, folder=str(folder), name=name, progress="off"))
    start = resolve_start(config, None, ranks or default_ranks(config.plan, 1))
    return Member(values, resolve(start.config, start.ranks, start.plan, preset), start.ranks)


def labels(paths: Sequence[str]) -> dict[str, str]:
    """Return a short label for every field: the name without the section, unless two fields would have the same label."""
    last = [path.rpartition(".")[2] for path in paths]
    return {path: short if last.count(short) == 1 else path for path, short in zip(paths, last, strict=True)}


def name_of(values: Mapping[str, object]) -> str:
    """Return a folder name for a run with these values. Long names are truncated and end with a hash."""
    short = labels(list(values))
    name = "_".join(f"{short[path]}-{_sanitize(value)}" for path, value in values.items())
    if len(name) <= _MAX_NAME:
        return name
    return f"{name[: _MAX_NAME - 10]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _sanitize(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-").replace("+", "")


def check_folder(member: Member) -> None:
    """Raise ValueError if the folder of the member already holds a run with other settings."""
    if not (member.folder.path / "config.json").is_file():
        return
    _, config = open_run(member.folder.path)
    if difference := describe_difference(config, member.config):
        raise ValueError(f"{difference} when {member.folder} was created; choose another --out")


def prepare(member: Member, preset: str | None) -> None:
    """Create the run folder of the member if it does not exist, or remove the mark of an earlier pruning.

    `preset` is the preset of the config, if any. If an earlier process was killed while it created the folder, its remains are removed first.
    """
    path = member.folder.path
    member.folder.unmark_pruned()
    if (path / "config.json").is_file():
        return
    if path.is_dir() and member.folder.has_only_remains():
        shutil.rmtree(path)
    create_run(member.config, preset, member.ranks)


def train_arguments(
    member: Member, preset: str | None, fields: Mapping[str, Mapping[str, object]], folder: Path | None = None
) -> list[str]:
    """Return the arguments of `lockstep` that start the run or resume it, on any host that shares its folder.

    `fields` has the fields of the config that the user has set for all runs, by section, besides those of the preset. `folder` is the folder
    of all runs on these hosts; None: that on this host.
    """
    tree = {section: dict(content) for section, content in fields.items()}
    for path, value in member.values.items():
        section, _, field = path.rpartition(".")
        if section:
            tree.setdefault(section, {})[field] = value
    folder = folder or member.folder.path.absolute().parent
    tree.setdefault("run", {}).update(name=member.name, folder=str(folder), progress="off")
    tree.setdefault("plan", {}).setdefault("shards", member.config.plan.shards)
    return ["train", *([preset] if preset else []), *as_flags(tree), "--resume"]


def is_done(member: Member) -> bool:
    """Return True if the run has a checkpoint of its last iteration."""
    checkpoints = member.folder.checkpoints()
    return bool(checkpoints) and is_complete(member.folder, member.config, checkpoints[-1])

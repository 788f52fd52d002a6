"""The runs of a sweep: what each is to be, and how far it is."""

import hashlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lockstep.algorithm.plan import default_ranks
from lockstep.config import Config
from lockstep.config.decode import encode
from lockstep.experiment.execute import create_run, open_run
from lockstep.experiment.resolve import iterations, resolve
from lockstep.experiment.start import RESUMABLE_FIELDS, resolve_start
from lockstep.run.folder import RunFolder

__all__ = ["Member", "check_folder", "experiment", "is_done", "labels", "name_of", "prepare", "settled"]

_LONGEST = 90
"""Letters of a name, that a digest may still follow."""
_MAY_DIFFER = {*RESUMABLE_FIELDS, "run.folder", "run.name", "runtime.compile"}
"""Fields that do not tell experiments apart. (Whether it is compiled was decided when the run was created.)"""


@dataclass(frozen=True)
class Member:
    """One run of a sweep."""

    values: Mapping[str, object]
    """What tells it from the others: the values of swept fields, and the number of its trial."""
    config: Config
    """Resolved; it has the run's name and folder."""
    ranks: int

    @property
    def name(self) -> str:
        """Of its folder."""
        return str(self.config.run.name)

    @property
    def folder(self) -> RunFolder:
        """Which may not exist yet."""
        return RunFolder(Path(self.config.run.folder) / self.name)


def settled(config: Config, ranks: int | None, values: Mapping[str, object], folder: Path, name: str) -> Member:
    """The run of a config, on `ranks` or as few as its plan can do with. Raises ValueError for what can't be run."""
    config = replace(config, run=replace(config.run, folder=str(folder), name=name, progress="off"))
    config, _, count = resolve_start(config, None, ranks or default_ranks(config.plan, 1))
    return Member(values, resolve(config, count), count)


def labels(paths: Sequence[str]) -> dict[str, str]:
    """Short names of fields: without their section, where that tells them apart."""
    last = [path.rpartition(".")[2] for path in paths]
    return {path: short if last.count(short) == 1 else path for path, short in zip(paths, last, strict=True)}


def name_of(values: Mapping[str, object]) -> str:
    """A name for the folder of a run with these values."""
    short = labels(list(values))
    name = "_".join(f"{short[path]}-{_letters(value)}" for path, value in values.items())
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 10]}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def _letters(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return re.sub(r"[^A-Za-z0-9._+-]+", "-", text).strip("-").replace("+", "")


def check_folder(member: Member) -> None:
    """Raises ValueError if there is a run with other settings in its place."""
    if not (member.folder.path / "config.json").is_file():
        return
    _, config = open_run(member.folder.path)
    before, now = experiment(config), experiment(member.config)
    other = next((path for path in now if before[path] != now[path]), None)
    if other is not None:
        raise ValueError(
            f"{other} is {now[other]!r}: it was {before[other]!r} when {member.folder.path} was made; choose another --out"
        )


def experiment(config: Config) -> dict[str, object]:
    """Its fields, `section.field`, without those that do not tell experiments apart."""
    tree = encode(config).items()
    fields = {f"{section}.{field}": value for section, content in tree for field, value in content.items()}
    return {path: value for path, value in fields.items() if path not in _MAY_DIFFER}


def prepare(member: Member, preset: str | None) -> None:
    """Makes its folder, if it has none; what a kill left of one that was being made goes first. `preset` is what it began with."""
    path = member.folder.path
    if (path / "config.json").is_file():
        return
    if path.is_dir() and all(left.name == "environment.json" or left.suffix == ".partial" for left in path.iterdir()):
        shutil.rmtree(path)
    create_run(member.config, preset, member.ranks)


def is_done(member: Member) -> bool:
    """Whether it has been trained to its end."""
    found = member.folder.checkpoints()
    return bool(found) and found[-1] >= iterations(member.config)

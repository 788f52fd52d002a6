"""Start of `train`: a new run, or the run with this name from its newest checkpoint.

A scheduler that starts a job again repeats its command. With `--resume` the repeated command resumes the run that the first one has started.
"""

import dataclasses
from typing import NamedTuple

from lockstep.algorithm.plan import Plan
from lockstep.config import Config
from lockstep.config.fields import RESUMABLE_FIELDS
from lockstep.experiment.execute import create_run, open_or_create_run, open_run
from lockstep.experiment.prepare_resume import prepare_resume
from lockstep.experiment.same_experiment import describe_difference
from lockstep.experiment.start import announce_start, check_kernels
from lockstep.experiment.storing import fetch_if_missing
from lockstep.run.folder import RunFolder

__all__ = ["PreparedRun", "ResolvedRun", "prepare_run"]


@dataclasses.dataclass(frozen=True)
class ResolvedRun:
    """The config that the user gave, the resolved config, and the plan of a start."""

    asked: Config
    """The config before it is resolved: fields that are `auto` still are."""
    config: Config
    """The resolved config."""
    plan: Plan
    preset: str | None
    """Name of the preset from which the config comes, if any."""
    resume: bool = False
    """Resume the run with this name if it exists."""

    def __post_init__(self) -> None:
        if self.resume and not self.config.run.name:
            raise ValueError("--resume needs --name, the name of the run that it starts or resumes")


class PreparedRun(NamedTuple):
    """A run folder that this process has locked."""

    folder: RunFolder
    config: Config
    resume_from: int | None
    """Iteration of the checkpoint to resume from, 0 for the start; None if the run is complete."""


def prepare_run(run: ResolvedRun) -> PreparedRun:
    """Create and lock the folder of a new run or, with `resume`, of the run with this name, and print the first line of the start.

    Raises ValueError, in one line, if the run can't be created or resumed.
    """
    fetch_if_missing(run.config.run, run.resume)
    if run.resume:
        return _create_or_resume(run)
    folder = create_run(run.config, run.preset, run.plan.ranks, run.asked)
    folder.lock()
    announce_start(folder, run.config, run.plan.ranks, None)
    return PreparedRun(folder, open_run(folder.path)[1], 0)  # with its name


def _create_or_resume(run: ResolvedRun) -> PreparedRun:
    """Resume the run with this name from its newest intact checkpoint, or create it if there is none.

    Raises RunInUse if another process trains the run, and ValueError if it is another experiment; the message names the first
    field that differs.
    """
    folder, before = open_or_create_run(run.config, run.preset, run.plan.ranks, run.asked)
    try:
        if before is None:
            announce_start(folder, run.config, run.plan.ranks, None)
            return PreparedRun(folder, run.config, 0)
        _check_same(folder, before, run)
        config = _resumed(before, run.config)
        check_kernels(config, run.plan)
        return PreparedRun(folder, config, prepare_resume(folder, before, config, None, run.plan.ranks))
    except BaseException:
        folder.unlock()
        raise


def _check_same(folder: RunFolder, before: Config, run: ResolvedRun) -> None:
    """Raise ValueError if the run is another experiment, or would continue with `runtime` settings that change results."""
    difference = describe_difference(before, run.config)
    for name in () if difference else ("device", "player_device", "compile"):
        asked, value, chosen = (getattr(config.runtime, name) for config in (run.asked, run.config, before))
        if value == chosen:
            continue
        # as with `lockstep resume`, the user may choose another device, and `auto` compiles as at the start; the hardware of this host must
        # not change the choice
        allowed = asked in ("auto", chosen) if name == "compile" else asked not in ("auto", None)
        if not allowed:
            difference = f"runtime.{name} is {value!r}: it was {chosen!r}"
    if difference is not None:
        raise ValueError(f"{difference} when {folder} was created; set it back, or choose another --name")


def _resumed(before: Config, requested: Config) -> Config:
    """Return the config of the run, with the requested values of all fields that may change at resume."""
    changes: dict[str, dict[str, object]] = {}
    for path in RESUMABLE_FIELDS:
        section, _, field = path.partition(".")
        changes.setdefault(section, {})[field] = getattr(getattr(requested, section), field)
    sections = {name: dataclasses.replace(getattr(before, name), **fields) for name, fields in changes.items()}
    return dataclasses.replace(before, **sections)

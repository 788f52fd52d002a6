"""Summary of a run, read from its folder, for reports, model cards and programs."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from lockstep import presets
from lockstep.algorithm.plan import Plan
from lockstep.config import Config
from lockstep.config.compose import load
from lockstep.config.decode import encode
from lockstep.config.flags import as_flags
from lockstep.envs.functions import is_function
from lockstep.experiment.execute import open_run
from lockstep.experiment.resolve import iterations
from lockstep.files import read_file
from lockstep.report.evaluate import EVALUATION, SAMPLED_EVALUATION, Evaluation
from lockstep.report.experiments import AUTO_RESOLVED
from lockstep.run.evaluations import read_best
from lockstep.run.folder import RunFolder
from lockstep.run.settings import WINDOW
from lockstep.telemetry.attempts import Start, read_starts
from lockstep.telemetry.status import RecentReturn

__all__ = ["Evaluated", "Machine", "ReturnMilestone", "RunSummary", "Setting", "summarize"]

Rows = Sequence[Mapping[str, Any]]

_OMITTED = {f"run.{field}" for field in ("folder", "name", "progress", "log_every", "loggers", "keep")} | {
    "runtime.backend",
    "runtime.rendezvous",
}
"""Settings that the repeating command omits: name, folder and display of the run, and how its ranks connect."""


@dataclass(frozen=True)
class ReturnMilestone:
    """Mean return of the last episodes, and the point of training at which it was measured."""

    value: float
    iteration: int
    env_steps: int
    seconds: float
    """Training time, summed over all attempts of an interrupted run."""
    episodes: int = WINDOW
    """Number of episodes."""


@dataclass(frozen=True)
class Setting:
    """Field of the config, with its default and the value in the preset."""

    name: str
    """Name of the form `section.field`."""
    value: object
    default: object
    preset: object
    """Value in the preset; the default if the preset does not set the field or the run has no preset."""
    decided: bool = False
    """True if the user left the value open (`auto` or none), so that it was chosen when the run was created."""

    @property
    def origin(self) -> Literal["default", "preset", "decided", "set"]:
        """Origin of the value; `set` means by a file, a flag or a program."""
        if self.value != self.preset:
            return "decided" if self.decided else "set"
        return "default" if self.value == self.default else "preset"


@dataclass(frozen=True)
class Machine:
    """Machine and software of the first start of a run. An empty string means that the value was not recorded."""

    python: str
    system: str
    host: str
    processor: str
    packages: Mapping[str, str]
    """Package versions by name."""
    git: str
    """Git commit of the working directory."""
    ranks: int | None
    """Number of processes; None if it was not recorded."""


@dataclass(frozen=True)
class Evaluated:
    """Stored result of `lockstep eval`."""

    iteration: int
    digest: str
    actions: str
    """`drawn` or `most probable`."""
    result: Evaluation


@dataclass(frozen=True)
class RunSummary:
    """Facts about a run. Values that the run folder does not contain are None or empty."""

    name: str
    config: Config
    preset: str | None
    expected: str | None
    """Result that the preset is expected to reach, as text."""
    status: Literal["finished", "running", "pruned", "unfinished"]
    iteration: int
    """Number of completed iterations."""
    iterations: int
    """Number of iterations of the full budget."""
    env_steps: int
    seconds: float
    """Training time, summed over all attempts of an interrupted run."""
    returns: Sequence[float]
    """Returns of the last training episodes up to the newest checkpoint, at most 20."""
    final: ReturnMilestone | None
    """Last mean return of 20 episodes; of all episodes if fewer have ended."""
    best: ReturnMilestone | None
    """Highest mean return of 20 episodes."""
    solved: ReturnMilestone | None
    """First mean return of 20 episodes that is at least `run.solved_return`."""
    evaluated: Evaluated | None
    """Result of `lockstep eval`."""
    sampled: Evaluated | None
    """Result of `lockstep eval --sample`."""
    digest: str
    """Digest after the last iteration."""
    checkpoint: int | None
    """Iteration of the newest checkpoint."""
    checkpoint_digest: str
    """Digest of the newest checkpoint."""
    settings: Sequence[Setting]
    """All fields of the config, in the order of the config."""
    machine: Machine
    starts: Sequence[Start]
    """Starts of the run and how each attempt ended; empty for a run of an older lockstep."""
    initial_total_steps: int | None
    """Value of `run.total_steps` at the first start; `resume --total-steps` may have raised it since."""
    metrics: Rows = field(repr=False)
    """Rows of metrics.jsonl."""
    evaluations: Rows = field(default=(), repr=False)
    """Rows of evaluations.jsonl: the evaluations during training."""
    best_checkpoint: int | None = None
    """Iteration of the checkpoint with the highest mean return in these evaluations."""
    ended_by_hook: bool = False
    """True if a hook ended training before the budget was used up."""

    @property
    def goal(self) -> float | None:
        """Value of `run.solved_return`."""
        return self.config.run.solved_return

    @property
    def early_end(self) -> str | None:
        """Why training ended before its budget was used up, as the end of a sentence; None if it did not."""
        if self.status != "finished" or self.iteration >= self.iterations:
            return None
        if self.ended_by_hook:
            return "ended by a hook"
        goal = self.config.run.stop_at_return  # checkpoints of older versions do not record a hook
        return (
            "ended by run.stop_at_return or a hook"
            if goal is None
            else f"because run.stop_at_return ({goal:g}) was reached"
        )

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps per second over the entire training; None before the first iteration."""
        return self.env_steps / self.seconds if self.seconds else None

    @property
    def extended(self) -> bool:
        """True if the budget was raised after the first start, which changes the course of schedules."""
        return self.initial_total_steps not in (None, self.config.run.total_steps)

    @property
    def env_faults(self) -> int:
        """Number of environments that failed and were replaced: the bits of the run do not follow from its config if it is not 0."""
        return int(_number(self.metrics[-1], "env_faults") or 0) if self.metrics else 0

    @property
    def preempts(self) -> bool:
        """True if slow ranks took fewer steps, so that the results depend on the speed of the ranks."""
        return self.config.plan.preempt is not None

    @property
    def exact(self) -> bool:
        """True if the bits of the run depend only on its config, not on the number of ranks."""
        return self.config.plan.exact and self.config.plan.gradients == "ordered"

    @property
    def command(self) -> str | None:
        """Command line that repeats this run, with all values that were chosen automatically. None if a program defined the environment."""
        if is_function(self.config.env.id):
            return None
        tree: dict[str, dict[str, object]] = {}
        for setting in self.settings:
            section, _, name = setting.name.partition(".")
            required = setting.name == "env.id" and (self.preset is None or presets.family(self.preset) is not None)
            if required or (setting.value != setting.preset and setting.name not in _OMITTED):
                tree.setdefault(section, {})[name] = setting.value
        command = ["lockstep", "train", *([self.preset] if self.preset else []), *as_flags(tree), *self._ranks()]
        return shlex.join(command)

    def _ranks(self) -> list[str]:
        """Return the flag for the number of ranks at the first start. Return no flag if the current plan does not allow that number."""
        if self.machine.ranks is None:
            return []
        try:
            Plan.make(self.config.plan, self.machine.ranks)
        except ValueError:
            return []
        return ["--ranks", str(self.machine.ranks)]


def summarize(folder: RunFolder) -> RunSummary:
    """Read the summary from the run folder. No checkpoint is loaded.

    Raises ValueError if the config or another file cannot be read. The message is one line.
    """
    _, config = open_run(folder.path)
    environment, rows = folder.environment(), folder.metrics()
    preset = environment.get("preset")
    preset = preset if isinstance(preset, str) and preset in presets.names() else None
    last = rows[-1] if rows else {}
    done, planned = int(_number(last, "iteration") or 0), iterations(config)
    milestones = [mark for row in rows if (mark := _milestone(row))]
    goal = config.run.solved_return
    newest = max(folder.checkpoints(), default=None)
    first, best = environment.get("total_steps"), read_best(folder)
    return RunSummary(
        name=folder.path.resolve().name,
        config=config,
        preset=preset,
        expected=presets.expected(preset) if preset else None,
        status=_status(folder, done, planned),
        iteration=done,
        iterations=planned,
        env_steps=int(_number(last, "env_steps") or 0),
        seconds=_number(last, "seconds") or 0.0,
        returns=_last_returns(folder, newest),
        final=milestones[-1] if milestones else _mean_of_all(rows),
        best=max(milestones, key=lambda mark: mark.value, default=None),
        solved=next((mark for mark in milestones if goal is not None and mark.value >= goal), None),
        evaluated=_evaluated(folder, EVALUATION, "lockstep eval"),
        sampled=_evaluated(folder, SAMPLED_EVALUATION, "lockstep eval --sample"),
        digest=_digest(rows, done),
        checkpoint=newest,
        checkpoint_digest=_digest(rows, newest),
        settings=_settings(config, preset, environment.get("decided")),
        machine=_machine(environment),
        starts=read_starts(folder),
        initial_total_steps=first if isinstance(first, int) else None,
        metrics=rows,
        evaluations=folder.evaluations(),
        best_checkpoint=None if best is None else best.iteration,
        ended_by_hook=done < planned and folder.ended_by_hook(done),
    )


def _status(folder: RunFolder, done: int, planned: int) -> Literal["finished", "running", "pruned", "unfinished"]:
    if done >= planned or folder.training_ended(done):
        return "finished"
    if folder.in_use():
        return "running"
    return "unfinished" if folder.why_pruned() is None else "pruned"


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _milestone(row: Mapping[str, Any], episodes: int = WINDOW) -> ReturnMilestone | None:
    value, iteration = _number(row, "return_mean_20"), _number(row, "iteration")
    if value is None or iteration is None:
        return None
    return ReturnMilestone(
        value, int(iteration), int(_number(row, "env_steps") or 0), _number(row, "seconds") or 0.0, episodes
    )


def _mean_of_all(rows: Rows) -> ReturnMilestone | None:
    """Return the mean return of a run in which fewer than 20 episodes have ended; None if none has."""
    recent = RecentReturn(rows)
    return None if recent.mean is None else _milestone({**rows[-1], "return_mean_20": recent.mean}, recent.episodes)


def _digest(rows: Rows, iteration: int | None) -> str:
    return next((str(row.get("digest", "")) for row in reversed(rows) if row.get("iteration") == iteration), "")


def _last_returns(folder: RunFolder, checkpoint: int | None) -> list[float]:
    if checkpoint is None:
        return []
    try:
        state = json.loads(read_file(folder.checkpoint(checkpoint) / "state.json"))
        return [float(value) for value in state["last_returns"]]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return []  # code that loads the checkpoint reports that it is broken


def _evaluated(folder: RunFolder, name: str, command: str) -> Evaluated | None:
    path = folder.path / name
    if not path.exists():
        return None
    try:
        stored = json.loads(read_file(path))
        lengths = [int(length) for length in stored["lengths"]]
        result = Evaluation([float(value) for value in stored["returns"]], lengths)
        if not result.returns or len(result.returns) != len(result.lengths):
            raise ValueError
        return Evaluated(int(stored["iteration"]), str(stored["digest"]), str(stored["actions"]), result)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError(f"{path} is broken; write a new one with `{command} {folder}`") from None


def _settings(config: Config, preset: str | None, decided: object) -> list[Setting]:
    """Return all settings. `decided` has the names of those that were chosen when the run was created; None for a run that does not record them."""
    defaults, values = encode(Config()), encode(config)
    preset_values = encode(load(presets.read(preset), None, {})) if preset else defaults
    settings = []
    for section, fields in values.items():
        for key, value in fields.items():
            name, before = f"{section}.{key}", preset_values[section][key]
            was_open = before == "auto" or (name in AUTO_RESOLVED and before is None)
            chosen = name in decided if isinstance(decided, list) else was_open
            settings.append(Setting(name, value, defaults[section][key], before, chosen))
    return settings


def _machine(environment: Mapping[str, object]) -> Machine:
    texts = {name: str(environment.get(name) or "") for name in ("python", "system", "host", "processor", "git")}
    packages, ranks = environment.get("packages"), environment.get("ranks")
    versions = {str(name): str(value) for name, value in packages.items()} if isinstance(packages, dict) else {}
    return Machine(packages=versions, ranks=ranks if isinstance(ranks, int) else None, **texts)

"""The facts of a run, gathered from its folder: for reports, model cards and programs."""

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
from lockstep.report.evaluate import EVALUATION, SAMPLED_EVALUATION, Evaluation
from lockstep.run.folder import RunFolder
from lockstep.telemetry.attempts import Start, read_starts

__all__ = ["Evaluated", "Machine", "Mark", "RunSummary", "Setting", "summarize"]

Rows = Sequence[Mapping[str, Any]]

_NOT_REPEATED = {f"run.{field}" for field in ("folder", "name", "progress", "loggers", "keep")} | {
    "runtime.backend",
    "runtime.rendezvous",
}
"""Settings that a command leaves out: where a run lies and how it is told of, how its ranks met."""
_DECIDED = {"plan.shards", "rollout.sequence_length", "runtime.player_device"}
"""Settings that are decided when a run is made, where they are none; all that are `auto` are too."""


@dataclass(frozen=True)
class Mark:
    """A mean return, and when it was reached."""

    value: float
    iteration: int
    env_steps: int
    seconds: float
    """Of training, over all parts of an interrupted run."""


@dataclass(frozen=True)
class Setting:
    """A field of the config."""

    name: str
    """`section.field`."""
    value: object
    default: object
    preset: object
    """What the preset says, or the default if it says nothing or there is none."""

    @property
    def decided(self) -> bool:
        """Whether it was left open, and decided when the run was made."""
        return self.value != self.preset and (self.preset == "auto" or (self.preset is None and self.name in _DECIDED))

    @property
    def origin(self) -> Literal["default", "preset", "decided", "set"]:
        """Where the value is from; `set`: from a file, a flag or a program."""
        if self.value != self.preset:
            return "decided" if self.decided else "set"
        return "default" if self.value == self.default else "preset"


@dataclass(frozen=True)
class Machine:
    """What a run was started on and with. Empty text: not noted."""

    python: str
    system: str
    host: str
    processor: str
    packages: Mapping[str, str]
    """Versions by name."""
    git: str
    """The commit of the folder that it was started in."""
    ranks: int | None
    """Processes at its first start."""


@dataclass(frozen=True)
class Evaluated:
    """What `lockstep eval` left."""

    iteration: int
    digest: str
    actions: str
    """`drawn` or `most probable`."""
    result: Evaluation


@dataclass(frozen=True)
class RunSummary:
    """A run in facts. What its folder does not hold is None or empty."""

    name: str
    config: Config
    preset: str | None
    expected: str | None
    """What the preset says that it reaches, in words."""
    status: Literal["finished", "running", "unfinished"]
    iteration: int
    """That are done."""
    iterations: int
    """That there are to be."""
    env_steps: int
    seconds: float
    """Of training, over all parts of an interrupted run."""
    returns: Sequence[float]
    """Of the last episodes of training up to the newest checkpoint, at most 20."""
    final: Mark | None
    """The last mean return of 20 episodes."""
    best: Mark | None
    """The highest one."""
    solved: Mark | None
    """The first one that is at least `run.solved_return`."""
    evaluated: Evaluated | None
    """The result of `lockstep eval`."""
    sampled: Evaluated | None
    """The result of `lockstep eval --sample`."""
    digest: str
    """After the last iteration."""
    checkpoint: int | None
    """The newest one's iteration."""
    checkpoint_digest: str
    settings: Sequence[Setting]
    """Every field of the config, in its order."""
    machine: Machine
    starts: Sequence[Start]
    """Every time that it was started, and how that ended; empty for a run of an older lockstep."""
    first_steps: int | None
    """`run.total_steps` at the first start, which `resume --total-steps` may have raised."""
    metrics: Rows = field(repr=False)
    """Rows of metrics.jsonl."""

    @property
    def goal(self) -> float | None:
        """`run.solved_return`."""
        return self.config.run.solved_return

    @property
    def steps_per_second(self) -> float | None:
        """Environment steps per second, over the whole training."""
        return self.env_steps / self.seconds if self.seconds else None

    @property
    def extended(self) -> bool:
        """Whether its budget was raised after its first start, which moves schedules."""
        return self.first_steps not in (None, self.config.run.total_steps)

    @property
    def exact(self) -> bool:
        """Whether its bits follow from its config, on any number of ranks."""
        return self.config.plan.exact and self.config.plan.gradients == "ordered"

    @property
    def command(self) -> str | None:
        """The command line that gives this run again, with all that was decided; None where a program gave the environment."""
        if is_function(self.config.env.id):
            return None
        tree: dict[str, dict[str, object]] = {}
        for setting in self.settings:
            section, _, name = setting.name.partition(".")
            named = setting.name == "env.id" and self.preset is None
            if named or (setting.value != setting.preset and setting.name not in _NOT_REPEATED):
                tree.setdefault(section, {})[name] = setting.value
        words = ["lockstep", "train", *([self.preset] if self.preset else []), *as_flags(tree), *self._ranks()]
        return shlex.join(words)

    def _ranks(self) -> list[str]:
        """As at the first start, if the plan that it has now can be carried by as many."""
        if self.machine.ranks is None:
            return []
        try:
            Plan.make(self.config.plan, self.machine.ranks)
        except ValueError:
            return []
        return ["--ranks", str(self.machine.ranks)]


def summarize(folder: RunFolder) -> RunSummary:
    """Reads a run's folder, and nothing else: no checkpoint is loaded.

    Raises ValueError, in one line, for a config or another file that can't be read.
    """
    _, config = open_run(folder.path)
    noted, rows = folder.environment(), folder.metrics()
    preset = noted.get("preset")
    preset = preset if isinstance(preset, str) and preset in presets.names() else None
    last = rows[-1] if rows else {}
    done, wanted = int(_number(last, "iteration") or 0), iterations(config)
    marks = [mark for row in rows if (mark := _mark(row))]
    goal = config.run.solved_return
    newest = max(folder.checkpoints(), default=None)
    first = noted.get("total_steps")
    return RunSummary(
        name=folder.path.resolve().name,
        config=config,
        preset=preset,
        expected=presets.expected(preset) if preset else None,
        status="finished" if done >= wanted else "running" if folder.in_use() else "unfinished",
        iteration=done,
        iterations=wanted,
        env_steps=int(_number(last, "env_steps") or 0),
        seconds=_number(last, "seconds") or 0.0,
        returns=_last_returns(folder, newest),
        final=marks[-1] if marks else None,
        best=max(marks, key=lambda mark: mark.value, default=None),
        solved=next((mark for mark in marks if goal is not None and mark.value >= goal), None),
        evaluated=_evaluated(folder, EVALUATION, "lockstep eval"),
        sampled=_evaluated(folder, SAMPLED_EVALUATION, "lockstep eval --sample"),
        digest=_digest(rows, done),
        checkpoint=newest,
        checkpoint_digest=_digest(rows, newest),
        settings=_settings(config, preset),
        machine=_machine(noted),
        starts=read_starts(folder),
        first_steps=first if isinstance(first, int) else None,
        metrics=rows,
    )


def _number(row: Mapping[str, Any], name: str) -> float | None:
    value = row.get(name)
    return value if isinstance(value, (int, float)) and math.isfinite(value) else None


def _mark(row: Mapping[str, Any]) -> Mark | None:
    value, iteration = _number(row, "return_mean_20"), _number(row, "iteration")
    if value is None or iteration is None:
        return None
    return Mark(value, int(iteration), int(_number(row, "env_steps") or 0), _number(row, "seconds") or 0.0)


def _digest(rows: Rows, iteration: int | None) -> str:
    return next((str(row.get("digest", "")) for row in reversed(rows) if row.get("iteration") == iteration), "")


def _last_returns(folder: RunFolder, checkpoint: int | None) -> list[float]:
    if checkpoint is None:
        return []
    try:
        state = json.loads((folder.checkpoint(checkpoint) / "state.json").read_text())
        return [float(value) for value in state["last_returns"]]
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return []  # a broken checkpoint is told by what loads it


def _evaluated(folder: RunFolder, name: str, command: str) -> Evaluated | None:
    path = folder.path / name
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text())
        result = Evaluation([float(total) for total in found["returns"]], [int(length) for length in found["lengths"]])
        if not result.returns or len(result.returns) != len(result.lengths):
            raise ValueError
        return Evaluated(int(found["iteration"]), str(found["digest"]), str(found["actions"]), result)
    except (OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise ValueError(f"{path} is broken; `{command} {folder.path}` writes it anew") from None


def _settings(config: Config, preset: str | None) -> list[Setting]:
    default, own = encode(Config()), encode(config)
    base = encode(load(presets.read(preset), None, {})) if preset else default
    return [
        Setting(f"{section}.{name}", value, default[section][name], base[section][name])
        for section, fields in own.items()
        for name, value in fields.items()
    ]


def _machine(noted: Mapping[str, object]) -> Machine:
    words = {name: str(noted.get(name) or "") for name in ("python", "system", "host", "processor", "git")}
    packages, ranks = noted.get("packages"), noted.get("ranks")
    versions = {str(name): str(value) for name, value in packages.items()} if isinstance(packages, dict) else {}
    return Machine(packages=versions, ranks=ranks if isinstance(ranks, int) else None, **words)

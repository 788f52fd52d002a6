"""The measured cost of an experiment, read from a run folder. The folder may come from others, so everything is checked."""

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from lockstep.algorithm.plan import Plan, PlanConfig
from lockstep.bench.training import default_warmup
from lockstep.config import Config
from lockstep.files import WEIGHTS_LIMIT, open_regular
from lockstep.phases import PHASES
from lockstep.run.folder import RunFolder
from lockstep.telemetry.attempts import read_starts

__all__ = ["LEAST_ITERATIONS", "Costs", "Workload", "read_workload"]

LEAST_ITERATIONS = 12
"""Smallest number of iterations of a run: two for the warm-up, and ten that are counted."""
_STEP = {"on": (150e-6, 1.4e-9), "off": (250e-6, 6.5e-9)}
"""Seconds of a gradient step that do not depend on the shards of a rank, mostly of the optimizer, and seconds per parameter, with and without
kernels (`runtime.compile`). They were measured on 2 cores of AMD EPYC (`optimizer_steps` in benchmarks/simulate.json)."""
_STEP_SHARE = 0.5
"""Largest fraction of the update that is taken as optimizer steps."""
_STATISTICS = 5
"""Numbers that are added with every gradient."""
_RECORD = 48
"""Numbers in the record of a shard, which trainers gather after every iteration (`run/records.py`)."""
_MOST_RANKS = 100_000
"""Largest number of ranks of a measured run, which limits the memory for its plan."""
_HEADER_LIMIT = 2**20
"""Largest size in bytes of the header of a file with tensors."""

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Costs:
    """Measured seconds of the counted iterations, `[iterations]` each. They do not include waiting for other ranks."""

    rollout: Seconds
    """Collecting one shard."""
    learn: Seconds
    """The update of one shard: preparation, the gradients of all minibatches, and, on a rank that trains alone, adding its rows."""
    publish: Seconds
    """Digests and records of one rank after an update."""
    record: Seconds
    """Metrics and checkpoints on rank 0."""


@dataclass(frozen=True)
class Workload:
    """An experiment with its measured cost. Every shard has the same size, so its cost does not depend on the plan."""

    costs: Costs
    shards: int
    steps: float
    """Environment steps of one shard in an iteration, without rows that reset an environment."""
    parameters: int
    updates: float
    """Gradient steps per iteration."""
    optimizer_step: float
    """Seconds of one optimizer step, which every rank that trains takes after each reduction."""
    itemsize: int = 4
    """Bytes of a parameter."""
    small_rows: tuple[int, ...] = ()
    """Float64 numbers in a row of each other reduction of an iteration, such as the statistics of advantages."""
    rollout_bytes: float = 0.0
    """Bytes of the rollout of one shard."""

    @property
    def gradient_numbers(self) -> int:
        """Numbers in a row of the reduction of gradients."""
        return self.parameters + _STATISTICS

    @property
    def record_numbers(self) -> int:
        """Float64 numbers in the record of a shard."""
        return _RECORD


def read_workload(folder: RunFolder, config: Config) -> tuple[Workload, int]:
    """Read the measured cost of a run, and the number of ranks that it was measured on. `config` is that of the run.

    The rows after the last start count, without a warm-up. `rollout_bytes` is not set. Raises ValueError in one line if the run can't be used.
    """
    start = next(iter(reversed(read_starts(folder))), None)
    if start is None:
        raise ValueError(f"{folder} can't be used: starts.jsonl holds no start of the run")
    rows = [row for row in folder.metrics() if isinstance(number := row["iteration"], int) and number > start.iteration]
    if len(rows) < LEAST_ITERATIONS:
        raise ValueError(
            f"{folder} has {len(rows)} iterations since its last start: a prediction needs at least {LEAST_ITERATIONS}; train it longer"
        )
    if start.ranks > _MOST_RANKS:
        raise ValueError(f"{folder} can't be used: starts.jsonl has {start.ranks} ranks, more than {_MOST_RANKS:,}")
    plan = _measured_plan(config.plan, start.plan, start.ranks)
    warmup = default_warmup(len(rows))
    shards, counted = len(plan.shards), rows[warmup:]
    updates = float(_column(folder, counted, "update_steps", 0.0).mean())
    parameters = _parameters(folder)
    costs, step = _costs(folder, counted, plan, _step_seconds(config, parameters), updates)
    env_steps = _column(folder, rows, "env_steps")
    return Workload(
        costs=costs,
        shards=shards,
        steps=float(env_steps[-1] - env_steps[warmup - 1]) / len(counted) / shards,
        parameters=parameters,
        updates=updates,
        optimizer_step=step,
        itemsize=8 if config.runtime.precision == "fp64" else 4,
        small_rows=_small_rows(config),
    ), start.ranks


def _measured_plan(config: PlanConfig, kind: str, ranks: int) -> Plan:
    """Return the plan of the last start. If the run was resumed with another kind of plan, that of the start counts."""
    if kind != config.kind and kind != "ranks":
        config = replace(config, kind=kind, players=None, trainers=None)
    return Plan.make(config, ranks)


def _costs(
    folder: RunFolder, rows: Sequence[Mapping[str, object]], plan: Plan, step: float, updates: float
) -> tuple[Costs, float]:
    """Return the costs per shard, and the seconds of an optimizer step: at most `step` and a part of the fastest update."""
    times = {phase: _column(folder, rows, f"t_{phase}") for phase in PHASES}
    played, trained = len(plan.played_by(0)), len(plan.trained_by(0))
    rollout = times["rollout"]
    if not played:
        players = [rank for rank in plan.playing if rank not in plan.training]
        rollout = _column(folder, rows, "player_t_rollout")
        played = max(len(plan.played_by(rank)) for rank in players)
    if updates:
        step = min(step, _STEP_SHARE * float(times["learn"].min()) / updates)
    added = times["sync"] if plan.ranks == 1 else 0.0
    costs = Costs(
        rollout=rollout / played,
        learn=(times["learn"] + added - updates * step) / trained,
        publish=times["publish"],
        record=times["record"],
    )
    return costs, step


def _column(
    folder: RunFolder, rows: Sequence[Mapping[str, object]], name: str, default: float | None = None
) -> Seconds:
    """Return a column of the metrics. Raises ValueError if a value is missing, negative or not finite."""
    values = [row.get(name, default) for row in rows]
    if not all(isinstance(value, int | float) and math.isfinite(value) and value >= 0 for value in values):
        raise ValueError(f"{folder}/metrics.jsonl can't be used: {name} must be a number of at least 0 in every line")
    return np.array(values, np.float64)


def _step_seconds(config: Config, parameters: int) -> float:
    fixed, per_parameter = _STEP["on" if config.runtime.compile == "on" else "off"]
    return fixed + parameters * per_parameter


def _small_rows(config: Config) -> tuple[int, ...]:
    """Return the sizes of the rows of all reductions but those of gradients (`algorithm/prepare.py`, `algorithm/update.py`)."""
    ppo = config.ppo
    epochs, minibatches = max(ppo.epochs_of_policy, ppo.epochs_of_value), ppo.minibatches or 1
    later = epochs - 1 if ppo.recompute_advantages else 0
    statistics = [1] * bool(config.policy.normalize_observations or ppo.normalize_rewards)
    first = [_STATISTICS + 2 * epochs * minibatches, epochs * minibatches]
    return (*statistics, *first, *[2 * minibatches, minibatches] * later)


def _parameters(folder: RunFolder) -> int:
    """Return the number of parameters, from the header of the optimizer's file in the newest checkpoint."""
    checkpoints = folder.checkpoints()
    if not checkpoints:
        raise ValueError(f"{folder} has no checkpoint: it has the number of parameters; train the run to its end")
    path = folder.checkpoint(checkpoints[-1]) / "optimizer.safetensors"
    try:
        with open_regular(path, WEIGHTS_LIMIT) as file:
            (size,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(size, _HEADER_LIMIT)))
        (count,) = header["first"]["shape"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError, struct.error):
        count = None
    if type(count) is not int or count < 1:
        raise ValueError(f"{path} can't be read: it must hold the optimizer's state")
    return count

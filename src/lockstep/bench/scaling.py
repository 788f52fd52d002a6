"""Steps per second, and the time to a return, on some numbers of ranks: of the same experiment, and of one that grows with the ranks."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lockstep.algorithm.plan import Plan
from lockstep.bench.repeats import interleave
from lockstep.bench.training import Training, train
from lockstep.config import Config

__all__ = ["KINDS", "Case", "Measured", "Rules", "carried_by", "measure", "weak"]

KINDS = ("strong", "weak")


@dataclass(frozen=True)
class Case:
    """What is measured."""

    kind: str
    """`strong`: the experiment itself; `weak`: as many environments per rank that plays as one rank has in the experiment."""
    ranks: int
    config: Config
    """Resolved for so many ranks."""


@dataclass(frozen=True)
class Rules:
    """How long runs are, and what of them counts."""

    repeats: int
    seconds: float = 5.0
    """Of every run, about, after its first iteration."""
    iterations: int | None = None
    """Of every run; None: see `seconds`."""
    left_out: int | None = None
    """Iterations at the beginning of every run that don't count; None: a tenth, at least 2."""
    solve: bool = False
    """Goes on until `run.solved_return` is reached or `run.total_steps` are spent. Then repeat r has the seed `run.seed` + r, from r = 0, as
    the time to a return differs between seeds."""


@dataclass(frozen=True)
class Measured:
    """One run of a case."""

    case: Case
    repeat: int
    """Counts from 1."""
    config: Config
    """The case's, with the run's own seed."""
    training: Training
    log: str
    """Name of the folder of its metrics."""


def carried_by(config: Config, ranks: int) -> Config:
    """The experiment as so many ranks carry it: one rank plays and trains, whatever the plan, as there is nobody to share with."""
    if ranks > 1:
        return config
    plan = dataclasses.replace(config.plan, kind="coupled", players=None, trainers=None, gradients="ordered")
    return dataclasses.replace(config, plan=plan)


def weak(config: Config, ranks: int) -> Config:
    """The experiment with its environments, and its shards, as many times as there are ranks that play. Minibatches grow with it, as there
    are as many as before. Raises ValueError for a plan that does not fit.
    """
    # how many play does not depend on the shards, which may be too few before they have grown
    times = len(Plan.make(dataclasses.replace(config.plan, shards=None), ranks).playing)
    env = dataclasses.replace(config.env, count=config.env.count * times)
    shards = config.plan.shards and config.plan.shards * times
    return dataclasses.replace(config, env=env, plan=dataclasses.replace(config.plan, shards=shards))


def measure(
    cases: Sequence[Case],
    rules: Rules,
    keep: Path | None = None,
    told: Callable[[str], None] = lambda line: None,
    found: Callable[[Sequence[Measured]], None] = lambda all_so_far: None,
) -> list[Measured]:
    """Runs all cases once per repeat, in turn. Cases that are the same experiment on the same ranks share their runs.

    `keep` gets a folder with the metrics of every run. `told` is given a line after each, `found` all runs so far. Raises ProcessFailed.
    """
    distinct: dict[str, list[Case]] = {}
    for case in cases:
        same = next((name for name, own in distinct.items() if _is_same(own[0], case)), None)
        distinct.setdefault(same or f"{case.kind}-{case.ranks}", []).append(case)
    results: list[Measured] = []

    def show(repeat: int, name: str, result: tuple[Config, Training, str]) -> None:
        config, training, log = result
        results.extend(Measured(case, repeat + 1, config, training, log) for case in distinct[name])
        kinds = " and ".join(case.kind for case in distinct[name])
        ranks = f"{distinct[name][0].ranks} rank{'s' * (distinct[name][0].ranks > 1)}"
        told(f"repeat {repeat + 1}/{rules.repeats}  {f'{kinds}, {ranks}':<24}  {training.rate:>11,.0f} steps/s")
        found(results)

    runs = {name: partial(_run, name, own[0], rules, keep, itertools.count()) for name, own in distinct.items()}
    interleave(runs, rules.repeats, show)
    return results


def _is_same(one: Case, other: Case) -> bool:
    return (one.ranks, one.config) == (other.ranks, other.config)


def _run(
    name: str, case: Case, rules: Rules, keep: Path | None, repeats: "itertools.count[int]"
) -> tuple[Config, Training, str]:
    repeat = next(repeats)
    config, goal = case.config, None
    if rules.solve:
        config = dataclasses.replace(config, run=dataclasses.replace(config.run, seed=config.run.seed + repeat))
        goal = config.run.solved_return
    log = f"{name}-repeat{repeat + 1}"
    training = train(
        config,
        case.ranks,
        rules.iterations,
        rules.seconds,
        goal=goal,
        left_out=rules.left_out,
        keep=keep and keep / log,
    )
    return config, training, log

"""Scaling benchmark: steps per second and time to a target return for several numbers of ranks, with strong and weak scaling."""

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
from lockstep.messages import counted

__all__ = ["KINDS", "Case", "Measured", "Rules", "for_ranks", "measure", "weak"]

KINDS = ("strong", "weak")


@dataclass(frozen=True)
class Case:
    """Experiment on a number of ranks."""

    kind: str
    """`strong`: the experiment itself; `weak`: the experiment with `env.count` environments for every rank that plays."""
    ranks: int
    config: Config
    """Config resolved for this number of ranks."""


@dataclass(frozen=True)
class Rules:
    """Length of the runs, and the iterations that are counted."""

    repeats: int
    seconds: float = 5.0
    """Approximate duration of every run after its first iteration."""
    iterations: int | None = None
    """Number of iterations of every run; None means that `seconds` determines the length."""
    warmup: int | None = None
    """Iterations at the beginning of every run that are not counted; None means a tenth of them, at least 2."""
    solve: bool = False
    """If True, runs end when `run.solved_return` is reached or `run.total_steps` are used up. Repeat r, from r = 0, then has the seed
    `run.seed` + r, because the time to a return differs between seeds."""


@dataclass(frozen=True)
class Measured:
    """One run of a case, with its results."""

    case: Case
    repeat: int
    """Number of the repeat, counted from 1."""
    config: Config
    """Config of the case, with the seed of this run."""
    training: Training
    log: str
    """Name of the folder with the metrics of the run."""


def for_ranks(config: Config, ranks: int) -> Config:
    """Return the config for a number of ranks. A single rank both plays and trains, whatever the plan."""
    if ranks > 1:
        return config
    plan = dataclasses.replace(config.plan, kind="coupled", players=None, trainers=None, gradients="ordered")
    return dataclasses.replace(config, plan=plan)


def weak(config: Config, ranks: int) -> Config:
    """Return the config with its environments and shards multiplied by the number of ranks that play.

    The number of minibatches stays, so each has more samples.

    Raises ValueError if the plan does not fit the number of ranks.
    """
    # the number of players does not depend on the shards, of which there may be too few before they are multiplied
    times = len(Plan.make(dataclasses.replace(config.plan, shards=None), ranks).playing)
    env = dataclasses.replace(config.env, count=config.env.count * times)
    shards = config.plan.shards and config.plan.shards * times
    return dataclasses.replace(config, env=env, plan=dataclasses.replace(config.plan, shards=shards))


def measure(
    cases: Sequence[Case],
    rules: Rules,
    metrics_folder: Path | None = None,
    print_line: Callable[[str], None] = lambda line: None,
    on_result: Callable[[Sequence[Measured]], None] = lambda results: None,
) -> list[Measured]:
    """Run all cases once per repeat, in turn. Cases with the same config and number of ranks share their runs.

    `metrics_folder` gets one folder per run with its metrics; None discards them. After every run, `print_line` is
    called with a line of progress, and `on_result` with all results so far. Raises ProcessFailed if a run fails.
    """
    distinct: dict[str, list[Case]] = {}
    for case in cases:
        same = (
            name for name, (other, *_) in distinct.items() if (other.ranks, other.config) == (case.ranks, case.config)
        )
        equal = next(same, None)
        distinct.setdefault(equal or f"{case.kind}-{case.ranks}", []).append(case)
    results: list[Measured] = []

    def show(repeat: int, name: str, result: tuple[Config, Training, str]) -> None:
        config, training, log = result
        results.extend(Measured(case, repeat + 1, config, training, log) for case in distinct[name])
        kinds = " and ".join(case.kind for case in distinct[name])
        ranks = counted(distinct[name][0].ranks, "rank")
        print_line(f"repeat {repeat + 1}/{rules.repeats}  {f'{kinds}, {ranks}':<24}  {training.rate:>11,.0f} steps/s")
        on_result(results)

    runs = {
        name: partial(_run, name, group[0], rules, metrics_folder, itertools.count())
        for name, group in distinct.items()
    }
    interleave(runs, rules.repeats, show)
    return results


def _run(
    name: str, case: Case, rules: Rules, metrics_folder: Path | None, repeats: "itertools.count[int]"
) -> tuple[Config, Training, str]:
    """Run a case once. `repeats` counts the runs of this case.

    Return the config with the seed of the run, the result, and the name of the folder with the metrics.
    """
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
        warmup=rules.warmup,
        metrics_folder=metrics_folder and metrics_folder / log,
    )
    return config, training, log

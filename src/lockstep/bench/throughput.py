"""Throughput of an experiment: steps per second, time by phase, and the ratio to the speed of its environments alone."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from lockstep.algorithm.plan import Plan
from lockstep.bench.repeats import Spread, disturbance_note, interleave, ratios, spread
from lockstep.bench.stepping import engine_rate
from lockstep.bench.training import Training, default_warmup, train
from lockstep.config import Config
from lockstep.messages import counted
from lockstep.phases import PHASES

__all__ = ["Throughput", "measure", "table"]

_ENGINE_SHARE = 0.25
"""Duration of the measurement of the environments alone, as a share of the duration of a training run."""


@dataclass(frozen=True)
class Throughput:
    """Results of several repeats, all with the same number of iterations."""

    config: Config
    ranks: int
    trainings: Sequence[Training]
    engines: Sequence[float]
    """Steps per second of the environments alone, one value per repeat."""

    @property
    def iterations(self) -> int:
        """Number of iterations of each run, including the warm-up."""
        return len(self.trainings[0].rows)

    @property
    def rate(self) -> Spread:
        """Environment steps per second during training."""
        return spread([training.rate for training in self.trainings])

    @property
    def engine(self) -> Spread:
        """Environment steps per second without training."""
        return spread(self.engines)

    @property
    def share(self) -> Spread:
        """Training speed divided by the speed of the environments alone."""
        return ratios([training.rate for training in self.trainings], self.engines)

    @property
    def middle(self) -> Training:
        """Repeat with the median rate (of two repeats, the slower one).

        Unlike medians over repeats, the phases of one repeat add up to the time of its iteration.
        """
        median = statistics.median_low(training.rate for training in self.trainings)
        return next(training for training in self.trainings if training.rate == median)

    @property
    def memory(self) -> list[int]:
        """Peak memory of every rank in bytes, the largest over all repeats."""
        return [max(peaks) for peaks in zip(*(training.memory for training in self.trainings), strict=True)]

    def record(self) -> dict[str, object]:
        """Return all results as JSON data."""
        return {
            "ranks": self.ranks,
            "iterations": self.iterations,
            "warmup_iterations": default_warmup(self.iterations),
            "steps_per_second": asdict(self.rate),
            "engine_steps_per_second": asdict(self.engine),
            "share_of_engine": asdict(self.share),
            "first_update_seconds": asdict(spread([training.first_update for training in self.trainings])),
            "phases": self.middle.phases(),
            "player_phases": self.middle.phases("player_t_"),
            "peak_memory_bytes": self.memory,
            "repeats": [
                {
                    "steps_per_second": training.rate,
                    "engine_steps_per_second": engine,
                    "first_update_seconds": training.first_update,
                    "phases": training.phases(),
                    "player_phases": training.phases("player_t_"),
                    "peak_memory_bytes": list(training.memory),
                }
                for training, engine in zip(self.trainings, self.engines, strict=True)
            ],
        }


def measure(
    cases: Mapping[str, tuple[Config, int]],
    repeats: int,
    seconds: float,
    iterations: int | None = None,
    print_line: Callable[[str], None] = lambda line: None,
) -> dict[str, Throughput]:
    """Measure the training of experiments, and of their environments alone, `repeats` times in turn.

    A case is a resolved config and a number of ranks. `iterations` None means as many as take about `seconds`, found by
    a run that is not counted. `print_line` is called with a line of progress after every run. Raises ProcessFailed if a
    run fails.
    """
    runs: dict[str, Callable[[], Training | float]] = {}
    for name, (config, ranks) in cases.items():
        count = iterations
        if count is None:
            count = len(train(config, ranks, seconds=seconds).rows)
            print_line(f"{_prefix(name)}{count} iterations in {seconds:g} s")
        runs[f"{_prefix(name)}training"] = partial(train, config, ranks, count)
        runs[f"{_prefix(name)}engine"] = partial(engine_rate, config, ranks, seconds * _ENGINE_SHARE)
    width = max(map(len, runs))

    def show(repeat: int, name: str, result: Training | float) -> None:
        rate = result.rate if isinstance(result, Training) else result
        print_line(f"repeat {repeat + 1}/{repeats}  {name:<{width}}  {rate:>11,.0f} steps/s")

    results = interleave(runs, repeats, show)
    return {
        name: Throughput(
            config,
            ranks,
            [result for result in results[f"{_prefix(name)}training"] if isinstance(result, Training)],
            [result for result in results[f"{_prefix(name)}engine"] if not isinstance(result, Training)],
        )
        for name, (config, ranks) in cases.items()
    }


def _prefix(case: str) -> str:
    return f"{case}, " if case else ""


def table(result: Throughput) -> list[str]:
    """Format the result as lines of at most 80 columns."""
    env, plan = result.config.env, Plan.make(result.config.plan, result.ranks)
    uncounted = default_warmup(result.iterations)
    kernels = "with kernels" if result.config.runtime.compile == "on" else "without kernels"
    return [
        f"{env.id}: {env.count} environments ({env.engine}) x {result.config.rollout.steps} steps",
        f"{counted(result.ranks, 'rank')} ({result.config.plan.kind}), {counted(len(plan.shards), 'shard')}, {kernels}",
        f"{counted(len(result.trainings), 'repeat')} of {result.iterations} iterations, the first {uncounted} of each not counted",
        "",
        *_rates(result),
        "",
        *_phases(result),
        "",
        *_ranks(result, plan),
        *disturbance_note(max(result.rate.range, result.engine.range)),
    ]


def _rates(result: Throughput) -> list[str]:
    lines = [f"{'steps per second':<26}{'median':>12}{'least':>12}{'most':>12}"]
    for name, rates in (("training", result.rate), ("environments alone", result.engine)):
        lines.append(f"{name:<26}{rates.median:>12,.0f}{rates.least:>12,.0f}{rates.most:>12,.0f}")
    share = result.share
    lines.append(f"{'training / alone':<26}{share.median:>12.1%}{share.least:>12.1%}{share.most:>12.1%}")
    return lines


def _phases(result: Throughput) -> list[str]:
    trainer, player = result.middle.phases(), result.middle.phases("player_t_")
    roles = [("rank 0, trains", trainer), ("players, mean", player)] if player else [("rank 0", trainer)]
    lines = [f"{'time per iteration':<26}" + "".join(f"{name:>24}" for name, _ in roles)]
    for phase in (*PHASES, "iter"):
        name = "total" if phase == "iter" else phase
        cells = (f"{seconds[phase] * 1e3:>12,.2f} ms{seconds[phase] / seconds['iter']:>9.1%}" for _, seconds in roles)
        lines.append(f"{name:<26}" + "".join(cells))
    return lines


def _ranks(result: Throughput, plan: Plan) -> list[str]:
    lines = [f"{'rank':<6}{'role':<20}{'peak memory':>12}"]
    for rank, peak in enumerate(result.memory):
        roles = [word for word, ranks in (("plays", plan.playing), ("trains", plan.training)) if rank in ranks]
        lines.append(f"{rank:<6}{', '.join(roles):<20}{f'{peak / 2**20:,.0f} MiB' if peak else '-':>12}")
    first = spread([training.first_update for training in result.trainings])
    lines += ["", f"first update {first.median:.2f} s after the start ({first.least:.2f} to {first.most:.2f})"]
    return lines

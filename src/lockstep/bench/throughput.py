"""How fast an experiment trains, where its time goes, and how far that is from its environments alone."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from lockstep.algorithm.plan import Plan
from lockstep.bench.repeats import DISTURBED, Spread, interleave, ratios, spread
from lockstep.bench.stepping import engine_rate
from lockstep.bench.training import PHASES, Training, train, warmup
from lockstep.config import Config

__all__ = ["Throughput", "measure", "table"]

_ENGINE_SHARE = 0.25
"""Of a repeat's seconds, those in which the environments are stepped alone."""


@dataclass(frozen=True)
class Throughput:
    """What some repeats showed, all of the same number of iterations."""

    config: Config
    ranks: int
    trainings: Sequence[Training]
    engines: Sequence[float]
    """Steps per second of the environments alone, one per repeat."""

    @property
    def iterations(self) -> int:
        """Of each run, the warm-up included."""
        return len(self.trainings[0].rows)

    @property
    def rate(self) -> Spread:
        """Environment steps per second while training."""
        return spread([training.rate for training in self.trainings])

    @property
    def engine(self) -> Spread:
        """Environment steps per second where nobody trains."""
        return spread(self.engines)

    @property
    def share(self) -> Spread:
        """Of the engine's rate, what training reaches."""
        return ratios([training.rate for training in self.trainings], self.engines)

    @property
    def middle(self) -> Training:
        """The repeat with the median rate (the slower one of two), whose phases add up to its iteration."""
        median = statistics.median_low(training.rate for training in self.trainings)
        return next(training for training in self.trainings if training.rate == median)

    @property
    def memory(self) -> list[int]:
        """Peak in bytes of every rank, the most of all repeats."""
        return [max(peaks) for peaks in zip(*(training.memory for training in self.trainings), strict=True)]

    def record(self) -> dict[str, object]:
        """All of it as JSON."""
        return {
            "ranks": self.ranks,
            "iterations": self.iterations,
            "warmup_iterations": warmup(self.iterations),
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
    told: Callable[[str], None] = lambda line: None,
) -> dict[str, Throughput]:
    """Trains resolved experiments on so many ranks `repeats` times, in turn, and in between steps their environments alone.

    Every run of a case has the same number of `iterations`; None: as many as take about so many `seconds`, found by a run that does
    not count. `told` is given a line after each. Raises ProcessFailed.
    """
    runs: dict[str, Callable[[], Training | float]] = {}
    for name, (config, ranks) in cases.items():
        count = iterations
        if count is None:
            count = len(train(config, ranks, seconds=seconds).rows)
            told(f"{_named(name)}{count} iterations in {seconds:g} s")
        runs[f"{_named(name)}training"] = partial(train, config, ranks, count)
        runs[f"{_named(name)}engine"] = partial(engine_rate, config, ranks, seconds * _ENGINE_SHARE)
    widest = max(map(len, runs))

    def show(repeat: int, name: str, result: Training | float) -> None:
        rate = result.rate if isinstance(result, Training) else result
        told(f"repeat {repeat + 1}/{repeats}  {name:<{widest}}  {rate:>11,.0f} steps/s")

    found = interleave(runs, repeats, show)
    return {
        name: Throughput(
            config,
            ranks,
            [result for result in found[f"{_named(name)}training"] if isinstance(result, Training)],
            [result for result in found[f"{_named(name)}engine"] if not isinstance(result, Training)],
        )
        for name, (config, ranks) in cases.items()
    }


def _named(case: str) -> str:
    return f"{case}, " if case else ""


def table(found: Throughput) -> list[str]:
    """Lines of at most 80 columns."""
    env, plan = found.config.env, Plan.make(found.config.plan, found.ranks)
    return [
        f"{env.id}: {env.count} environments ({env.engine}) x {found.config.rollout.steps} steps",
        f"{_many(found.ranks, 'rank')} ({found.config.plan.kind}), {_many(len(plan.shards), 'shard')}, {_compiled(found.config)}",
        f"{_many(len(found.trainings), 'repeat')} of {found.iterations} iterations, the first {warmup(found.iterations)} of each left out",
        "",
        *_rates(found),
        "",
        *_phases(found),
        "",
        *_ranks(found, plan),
        *_notes(found),
    ]


def _rates(found: Throughput) -> list[str]:
    lines = [f"{'steps per second':<26}{'median':>12}{'least':>12}{'most':>12}"]
    for name, rates in (("training", found.rate), ("environments alone", found.engine)):
        lines.append(f"{name:<26}{rates.median:>12,.0f}{rates.least:>12,.0f}{rates.most:>12,.0f}")
    share = found.share
    lines.append(f"{'training / alone':<26}{share.median:>12.1%}{share.least:>12.1%}{share.most:>12.1%}")
    return lines


def _phases(found: Throughput) -> list[str]:
    """One pair of columns per role."""
    trainer, player = found.middle.phases(), found.middle.phases("player_t_")
    roles = [("rank 0, trains", trainer), ("players, mean", player)] if player else [("rank 0", trainer)]
    lines = [f"{'time per iteration':<26}" + "".join(f"{name:>24}" for name, _ in roles)]
    for phase in (*PHASES, "iter"):
        name = "whole" if phase == "iter" else phase
        cells = (f"{seconds[phase] * 1e3:>12,.2f} ms{seconds[phase] / seconds['iter']:>9.1%}" for _, seconds in roles)
        lines.append(f"{name:<26}" + "".join(cells))
    return lines


def _ranks(found: Throughput, plan: Plan) -> list[str]:
    lines = [f"{'rank':<6}{'role':<20}{'peak memory':>12}"]
    for rank, peak in enumerate(found.memory):
        roles = [word for word, ranks in (("plays", plan.playing), ("trains", plan.training)) if rank in ranks]
        lines.append(f"{rank:<6}{', '.join(roles):<20}{f'{peak / 2**20:,.0f} MiB' if peak else '-':>12}")
    first = spread([training.first_update for training in found.trainings])
    lines += ["", f"first update {first.median:.2f} s after the start ({first.least:.2f} to {first.most:.2f})"]
    return lines


def _notes(found: Throughput) -> list[str]:
    widest = max(found.rate.range, found.engine.range)
    if widest <= DISTURBED:
        return []
    return ["", f"note: repeats differ by {widest:.0%}; something else was running, or they were too short"]


def _compiled(config: Config) -> str:
    return "compiled" if config.runtime.compile == "on" else "not compiled"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"

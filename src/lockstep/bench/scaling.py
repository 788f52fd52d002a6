"""Steps per second on 1 to N ranks: of the same experiment, and of one that grows with the ranks."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial

from lockstep.bench.repeats import DISTURBED, Spread, interleave, ratios, spread
from lockstep.bench.training import Training, train
from lockstep.config import Config

__all__ = ["Scaling", "measure", "table", "weak"]


@dataclass(frozen=True)
class Scaling:
    """Runs of some numbers of ranks, by repeat."""

    strong: Mapping[int, Sequence[Training]]
    """The same experiment."""
    weak: Mapping[int, Sequence[Training]]
    """As many environments per rank as one rank has in the experiment."""

    def rate(self, kind: str, ranks: int) -> Spread:
        """Environment steps per second; `kind` is `strong` or `weak`."""
        return spread(self._rates(kind, ranks))

    def speedup(self, kind: str, ranks: int) -> Spread:
        """Steps per second of so many ranks to those of one."""
        return ratios(self._rates(kind, ranks), self._rates(kind, 1))

    def _rates(self, kind: str, ranks: int) -> list[float]:
        runs = self.strong if kind == "strong" else self.weak
        return [training.rate for training in runs[ranks]]

    def record(self) -> dict[str, object]:
        """All of it as JSON."""
        return {
            kind: {
                str(ranks): {
                    "steps_per_second": asdict(self.rate(kind, ranks)),
                    "speedup": asdict(self.speedup(kind, ranks)),
                    "repeats": self._rates(kind, ranks),
                }
                for ranks in self.strong
            }
            for kind in ("strong", "weak")
        }


def weak(config: Config, ranks: int) -> Config:
    """The experiment with `ranks` times its environments and its shards. Minibatches grow with it, as there are as many as before."""
    env = dataclasses.replace(config.env, count=config.env.count * ranks)
    shards = config.plan.shards and config.plan.shards * ranks
    return dataclasses.replace(config, env=env, plan=dataclasses.replace(config.plan, shards=shards))


def measure(
    strong: Mapping[int, Config],
    weak: Mapping[int, Config],
    repeats: int,
    seconds: float,
    iterations: int | None = None,
    told: Callable[[str], None] = lambda line: None,
) -> Scaling:
    """Trains resolved experiments, by number of ranks, one of them 1: for `iterations`, or about so many `seconds` each.

    `told` is given a line after each run. Raises Failed.
    """
    runs = {
        (kind, ranks): partial(train, config, ranks, iterations, seconds)
        for kind, configs in (("strong", strong), ("weak", weak))
        for ranks, config in configs.items()
        if ranks > 1 or kind == "strong"  # on one rank both are the same
    }
    named = {f"{kind} {ranks}": run for (kind, ranks), run in runs.items()}

    def show(repeat: int, name: str, result: Training) -> None:
        told(f"repeat {repeat + 1}/{repeats}  {name:<9}  {result.rate:>11,.0f} steps/s")

    found = interleave(named, repeats, show)
    by_kind = {
        kind: {ranks: found[f"{kind} {ranks}" if ranks > 1 else "strong 1"] for ranks in strong}
        for kind in ("strong", "weak")
    }
    return Scaling(by_kind["strong"], by_kind["weak"])


def table(config: Config, found: Scaling) -> list[str]:
    """Lines of at most 80 columns. `config` is that of one rank."""
    env, compiled = config.env, "compiled" if config.runtime.compile == "on" else "not compiled"
    lines = [
        f"{env.id}: {env.count} environments ({env.engine}) x {config.rollout.steps} steps, {compiled}",
        f"strong: the same experiment; weak: {env.count} environments per rank",
        "",
        f"{'':<7}{'strong':>36}{'weak':>36}",
        f"{'ranks':<7}" + f"{'steps/s':>14}{'speedup':>9}{'range':>13}" * 2,
    ]
    widest = 0.0
    for ranks in found.strong:
        line = f"{ranks:<7}"
        for kind in ("strong", "weak"):
            rate, speedup = found.rate(kind, ranks), found.speedup(kind, ranks)
            widest = max(widest, rate.range)
            line += f"{rate.median:>14,.0f}{speedup.median:>9.2f}{f'{speedup.least:.2f}-{speedup.most:.2f}':>13}"
        lines.append(line)
    if widest > DISTURBED:
        lines += ["", f"note: repeats differ by {widest:.0%}; something else was running, or they were too short"]
    return lines

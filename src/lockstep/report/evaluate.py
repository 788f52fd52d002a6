"""Whole episodes of an agent in a single environment: for `eval`, `play` and videos."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import gymnasium as gym

__all__ = ["EVALUATION", "SAMPLED_EVALUATION", "Begin", "Evaluation", "play_episodes"]

EVALUATION = "evaluation.json"
SAMPLED_EVALUATION = "evaluation-sampled.json"
"""Files of a run's folder with the newest results of `lockstep eval` and `lockstep eval --sample`."""

Begin = Callable[[], Callable[[Any, dict[str, Any]], Any]]
"""Begins an episode: gives a function of its observations and infos to actions, which remembers what it needs."""


def play_episodes(env: gym.Env[Any, Any], begin: Begin, seeds: Sequence[int]) -> Iterator[tuple[float, int]]:
    """Plays one episode per seed and yields its return and its length in steps, as it ends.

    Args:
        env: It is not closed.
        begin: Called for every episode.
        seeds: Every episode begins with `reset(seed=…)`.
    """
    for seed in seeds:
        act, (observation, info) = begin(), env.reset(seed=seed)
        total, length, over = 0.0, 0, False
        while not over:
            observation, reward, terminated, truncated, info = env.step(act(observation, info))
            total, length, over = total + float(reward), length + 1, terminated or truncated
        yield total, length


@dataclass(frozen=True)
class Evaluation:
    """What a number of episodes gave."""

    returns: list[float]
    lengths: list[int]

    @property
    def return_mean(self) -> float:
        """Mean of `returns`."""
        return fmean(self.returns)

    @property
    def interval(self) -> float | None:
        """Half the width of the 95% interval of the mean return, `1.96 s / sqrt(n)`; None for one episode.

        This is the normal approximation, which is too narrow for fewer than 20 episodes.
        """
        count = len(self.returns)
        return 1.96 * stdev(self.returns) / math.sqrt(count) if count > 1 else None

    def summary(self) -> dict[str, object]:
        """All numbers, by name."""
        return {
            "episodes": len(self.returns),
            "return_mean": self.return_mean,
            "return_interval_95": self.interval,
            "return_min": min(self.returns),
            "return_max": max(self.returns),
            "length_mean": fmean(self.lengths),
            "returns": self.returns,
            "lengths": self.lengths,
        }

    def lines(self) -> str:
        """The same for a reader."""
        spread = "" if self.interval is None else f" ± {self.interval:.3g} (95% interval of the mean)"
        return (
            f"return  {self.return_mean:.5g}{spread}, {min(self.returns):.5g} to {max(self.returns):.5g}\n"
            f"length  {fmean(self.lengths):.5g}, {min(self.lengths)} to {max(self.lengths)} steps"
        )

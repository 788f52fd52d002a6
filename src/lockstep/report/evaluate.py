"""Whole episodes of an agent in a single environment: for `eval`, `play` and videos."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

__all__ = ["Evaluation", "play_episodes"]


def play_episodes(
    env: gym.Env[Any, Any],
    act: Callable[[NDArray[Any]], NDArray[Any]],
    flatten: Callable[[Any], NDArray[Any]],
    seeds: Sequence[int],
) -> Iterator[tuple[float, int]]:
    """Plays one episode per seed and yields its return and its length in steps, as it ends.

    Args:
        env: It is not closed.
        act: Observations `[1, O]` to actions `[1]` or `[1, A]`, as the environment takes them.
        flatten: An observation of the environment to its row `[O]`.
        seeds: Every episode begins with `reset(seed=…)`.
    """
    for seed in seeds:
        observation, _ = env.reset(seed=seed)
        total, length, over = 0.0, 0, False
        while not over:
            row = np.asarray(flatten(observation))
            observation, reward, terminated, truncated, _ = env.step(act(row[None])[0])
            total, length, over = total + float(reward), length + 1, terminated or truncated
        yield total, length


@dataclass(frozen=True)
class Evaluation:
    """What a number of episodes gave."""

    returns: list[float]
    lengths: list[int]

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
            "return_mean": fmean(self.returns),
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
            f"return  {fmean(self.returns):.5g}{spread}, {min(self.returns):.5g} to {max(self.returns):.5g}\n"
            f"length  {fmean(self.lengths):.5g}, {min(self.lengths)} to {max(self.lengths)} steps"
        )

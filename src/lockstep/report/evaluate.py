"""Evaluation of an agent over complete episodes: for `lockstep eval`, `play`, videos and evaluations during training."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import gymnasium as gym

from lockstep.experiment.policy import ActTogether

__all__ = [
    "EVALUATION",
    "MAX_STEPS",
    "SAMPLED_EVALUATION",
    "Begin",
    "Evaluation",
    "play_episodes",
    "play_together",
]

EVALUATION = "evaluation.json"
SAMPLED_EVALUATION = "evaluation-sampled.json"
"""Files in the run folder with the latest results of `lockstep eval` and `lockstep eval --sample`."""

MAX_STEPS = 100_000
"""Largest number of steps of an episode: in an environment without a time limit, an agent may never reach an end."""
Begin = Callable[[], Callable[[Any, dict[str, Any]], Any]]
"""Function that is called at the beginning of an episode. It returns a function from observation and info to action, which keeps the memory
of a recurrent policy during the episode."""


def play_episodes(
    env: gym.Env[Any, Any], begin: Begin, seeds: Sequence[int], on_observation: Callable[[], None] = lambda: None
) -> Iterator[tuple[float, int]]:
    """Play one episode per seed of `reset`. Yield the return and the length in steps of each when it ends. `env` is not closed.

    Episodes are ended after `MAX_STEPS` steps. `on_observation` is called after every reset and every step.
    """
    for seed in seeds:
        act, (observation, info) = begin(), env.reset(seed=seed)
        on_observation()
        total, length, done = 0.0, 0, False
        while not done:
            observation, reward, terminated, truncated, info = env.step(act(observation, info))
            on_observation()
            total, length = total + float(reward), length + 1
            done = terminated or truncated or length == MAX_STEPS
        yield total, length


def play_together(envs: Sequence[gym.Env[Any, Any]], act: ActTogether, seeds: Sequence[int]) -> list[tuple[float, int]]:
    """Play one episode in each environment, all at the same time. Return the return and the length in steps of each.

    An environment whose episode has ended is not stepped any more: `act` gets its last observation but one again, and its action is not used.
    Episodes are ended after `MAX_STEPS` steps.
    """
    starts = [env.reset(seed=seed) for env, seed in zip(envs, seeds, strict=True)]
    observations, infos = [observation for observation, _ in starts], [info for _, info in starts]
    totals, lengths, playing = [0.0] * len(envs), [0] * len(envs), list(range(len(envs)))
    while playing:
        actions = act(observations, infos)
        for index in list(playing):
            observation, reward, terminated, truncated, info = envs[index].step(actions[index])
            totals[index], lengths[index] = totals[index] + float(reward), lengths[index] + 1
            if terminated or truncated or lengths[index] == MAX_STEPS:
                playing.remove(index)
            else:
                # not at the end: there, a mask of actions may be missing
                observations[index], infos[index] = observation, info
    return list(zip(totals, lengths, strict=True))


@dataclass(frozen=True)
class Evaluation:
    """Returns and lengths of the episodes of an evaluation."""

    returns: list[float]
    lengths: list[int]

    @property
    def return_mean(self) -> float:
        """Mean of `returns`."""
        return fmean(self.returns)

    @property
    def return_std(self) -> float | None:
        """Sample standard deviation of `returns`; None for one episode."""
        return stdev(self.returns) if len(self.returns) > 1 else None

    @property
    def length_mean(self) -> float:
        """Mean of `lengths`."""
        return fmean(self.lengths)

    @property
    def interval(self) -> float | None:
        """Half the width of the 95% confidence interval of the mean return; None for one episode.

        It is the normal approximation, `1.96 s / sqrt(n)`.
        """
        return None if self.return_std is None else 1.96 * self.return_std / math.sqrt(len(self.returns))

    def summary(self) -> dict[str, object]:
        """Return all numbers by name, as stored in the evaluation files."""
        return {
            "episodes": len(self.returns),
            "return_mean": self.return_mean,
            "return_interval_95": self.interval,
            "return_min": min(self.returns),
            "return_max": max(self.returns),
            "length_mean": self.length_mean,
            "returns": self.returns,
            "lengths": self.lengths,
        }

    def lines(self) -> str:
        """Format the result as two lines of text, and a third one if episodes were ended after `MAX_STEPS` steps."""
        spread = "" if self.interval is None else f" ± {self.interval:.3g} (95% interval of the mean)"
        lines = [
            f"return  {self.return_mean:.5g}{spread}, {min(self.returns):.5g} to {max(self.returns):.5g}",
            f"length  {self.length_mean:.5g}, {min(self.lengths)} to {max(self.lengths)} steps",
        ]
        endless = self.lengths.count(MAX_STEPS)
        if endless:
            lines.append(
                f"note    {endless} of {len(self.lengths)} episodes were ended after {MAX_STEPS:,} steps: set a time limit, for example "
                "with env.wrappers 'TimeLimit(max_episode_steps=1000)'"
            )
        return "\n".join(lines)

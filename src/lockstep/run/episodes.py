"""Episodes that ended, brought together from all shards in one order."""

from collections import deque
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from lockstep.rollout import Rollout

__all__ = ["EPISODE_ROW", "WINDOW", "EpisodeWindow", "write_episode_row"]

WINDOW = 20
"""Episodes that `return_mean_20` averages over."""
_COLUMNS = 4
_TOTALS = 6
EPISODE_ROW = _TOTALS + WINDOW * _COLUMNS
"""Numbers of a row: always the same, so that it can travel."""


def write_episode_row(rollout: Rollout, first_environment: int, row: NDArray[np.float64]) -> None:
    """Fills `row`, `[6 + 4 × 20]` float64.

    First valid steps, and of the episodes that ended their number, summed length, summed, least and largest return. Then the
    last 20 of them as (time, environment, return, length), NaN where there were fewer.
    """
    # few calls of NumPy: between two updates its code is not in the processor's caches, while Python's own is
    episodes, environments = rollout.episodes.numpy().reshape(-1, 2), rollout.episodes.shape[1]
    ended = (episodes[:, 0] == episodes[:, 0]).nonzero()[0]
    listed = episodes[ended].tolist()
    count, steps = len(listed), np.count_nonzero(rollout.valid.numpy())
    row.fill(np.nan)
    if not count:
        row[:4] = steps, 0, 0, 0
        return
    returns = [episode[0] for episode in listed]
    row[:_TOTALS] = steps, count, sum(episode[1] for episode in listed), sum(returns), min(returns), max(returns)
    last = [
        (place // environments, first_environment + place % environments, *episode)
        for place, episode in zip(ended[-WINDOW:].tolist(), listed[-WINDOW:], strict=True)
    ]
    row[_TOTALS : _TOTALS + _COLUMNS * len(last)] = list(chain.from_iterable(last))


class EpisodeWindow:
    """The returns of the last 20 episodes over all shards, ordered by time and environment."""

    def __init__(self, returns: Sequence[float] = ()) -> None:
        self.returns: deque[float] = deque(returns, maxlen=WINDOW)

    def add(self, rows: NDArray[np.float64]) -> dict[str, float | int | None]:
        """`[S, 86]`, one row per shard of `write_episode_row` -> metrics of this iteration, None where no episode ended."""
        ended = rows[rows[:, 1] > 0]
        listed = ended[:, _TOTALS:].reshape(-1, _COLUMNS)
        self.returns.extend(episode[2] for episode in sorted(listed[~np.isnan(listed[:, 0])].tolist()))
        counts, lengths, totals, least, largest = ended[:, 1:_TOTALS].T.tolist()
        count = sum(counts)
        return {
            "episodes": int(count),
            "return_mean": sum(totals) / count if count else None,
            "return_min": min(least) if count else None,
            "return_max": max(largest) if count else None,
            "return_mean_20": sum(self.returns) / WINDOW if len(self.returns) == WINDOW else None,
            "length_mean": sum(lengths) / count if count else None,
        }

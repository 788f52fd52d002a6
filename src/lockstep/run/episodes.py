"""Episodes that ended in an iteration: their statistics per shard, and the last returns over all shards."""

from collections import deque
from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from lockstep.rollout import Rollout
from lockstep.run.settings import WINDOW

__all__ = ["EPISODE_ROW", "EpisodeWindow", "write_episode_row"]

_COLUMNS = 4
_TOTALS = 6
EPISODE_ROW = _TOTALS + WINDOW * _COLUMNS
"""Length of a row of `write_episode_row`; fixed, so that rows can be gathered."""


def write_episode_row(rollout: Rollout, first_environment: int, row: NDArray[np.float64]) -> None:
    """Fill `row`, `[6 + 4 × 20]` float64, with the statistics of one shard.

    Columns 0 to 5 are the number of valid steps, then the number, total length, total return, minimum return and
    maximum return of the episodes that ended. The other columns are the last 20 of these episodes as (time,
    environment, return, length), NaN if there are fewer.
    """
    # few NumPy calls: after an update NumPy's code is no longer in the processor's caches, while Python's own code is
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
        (index // environments, first_environment + index % environments, *episode)
        for index, episode in zip(ended[-WINDOW:].tolist(), listed[-WINDOW:], strict=True)
    ]
    row[_TOTALS : _TOTALS + _COLUMNS * len(last)] = list(chain.from_iterable(last))


class EpisodeWindow:
    """Returns of the last 20 episodes over all shards, ordered by time and environment."""

    def __init__(self, returns: Sequence[float] = ()) -> None:
        self.returns: deque[float] = deque(returns, maxlen=WINDOW)

    @property
    def mean(self) -> float | None:
        """Mean of the last returns, at most 20; None before the first episode ended."""
        return sum(self.returns) / len(self.returns) if self.returns else None

    @property
    def full_mean(self) -> float | None:
        """Mean of the last 20 returns; None before 20 episodes ended."""
        return sum(self.returns) / WINDOW if len(self.returns) == WINDOW else None

    def add(self, rows: NDArray[np.float64]) -> dict[str, float | int | None]:
        """Add the rows of all shards, `[shards, 86]`, each from `write_episode_row`.

        Return the metrics of this iteration. They are None if no episode ended.
        """
        ended = rows[rows[:, 1] > 0]
        listed = ended[:, _TOTALS:].reshape(-1, _COLUMNS)
        self.returns.extend(episode[2] for episode in sorted(listed[~np.isnan(listed[:, 0])].tolist()))
        counts, lengths, totals, minima, maxima = ended[:, 1:_TOTALS].T.tolist()
        count = sum(counts)
        return {
            "episodes": int(count),
            "return_mean": sum(totals) / count if count else None,
            "return_min": min(minima) if count else None,
            "return_max": max(maxima) if count else None,
            "return_mean_20": self.full_mean,
            "length_mean": sum(lengths) / count if count else None,
        }

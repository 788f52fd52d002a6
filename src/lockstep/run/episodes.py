"""Episodes that ended, brought together from all shards in one order."""

from collections import deque
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.rollout import Rollout

__all__ = ["WINDOW", "EpisodeWindow", "episode_row"]

WINDOW = 20
"""Episodes that `return_mean_20` averages over."""
_COLUMNS = 4
_SUMS = 3


def episode_row(rollout: Rollout, first_environment: int) -> Tensor:
    """`[3 + 4 × 20]` float64: valid steps; number, summed length of ended episodes; then the last 20 as (time, environment,
    return, length), NaN where there were fewer. A fixed shape, so that it can travel.
    """
    ended = ~rollout.episodes[..., 0].isnan()
    times, environments = ended.nonzero(as_tuple=True)
    episodes = rollout.episodes[times, environments]
    listed = torch.cat([torch.stack([times, environments + first_environment], -1).to(torch.float64), episodes], -1)[
        -WINDOW:
    ]
    row = torch.full((_SUMS + WINDOW * _COLUMNS,), torch.nan, dtype=torch.float64)
    row[0], row[1], row[2] = rollout.valid.sum(), len(episodes), episodes[:, 1].sum()
    row[_SUMS : _SUMS + listed.numel()] = listed.flatten()
    return row


class EpisodeWindow:
    """The returns of the last 20 episodes over all shards, ordered by time and environment."""

    def __init__(self, returns: Sequence[float] = ()) -> None:
        self.returns: deque[float] = deque(returns, maxlen=WINDOW)

    def add(self, rows: Tensor) -> dict[str, float | int | None]:
        """`[S, 83]`, one `episode_row` per shard -> metrics of this iteration. Means are None where no episode ended."""
        count, length = int(rows[:, 1].sum()), float(rows[:, 2].sum())
        listed = rows[:, _SUMS:].reshape(-1, _COLUMNS)
        newest = sorted(tuple(episode) for episode in listed[~listed[:, 0].isnan()].tolist())
        returns = [episode[2] for episode in newest]
        self.returns.extend(returns)
        return {
            "episodes": count,
            "return_mean": _mean(returns),
            "return_min": min(returns, default=None),
            "return_max": max(returns, default=None),
            "return_mean_20": _mean(self.returns) if len(self.returns) == WINDOW else None,
            "length_mean": length / count if count else None,
        }


def _mean(values: Sequence[float] | deque[float]) -> float | None:
    return sum(values) / len(values) if values else None

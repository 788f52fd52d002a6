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
_TOTALS = 6


def episode_row(rollout: Rollout, first_environment: int) -> Tensor:
    """`[6 + 4 × 20]` float64, a fixed shape, so that it can travel.

    First valid steps, and of the episodes that ended their number, summed length, summed, least and largest return. Then the
    last 20 of them as (time, environment, return, length), NaN where there were fewer.
    """
    ended = ~rollout.episodes[..., 0].isnan()
    times, environments = ended.nonzero(as_tuple=True)
    episodes = rollout.episodes[times, environments]
    places = torch.stack([times, environments + first_environment], -1).to(torch.float64)
    listed = torch.cat([places, episodes], -1)[-WINDOW:]
    returns, lengths = episodes.unbind(-1)
    row = torch.full((_TOTALS + WINDOW * _COLUMNS,), torch.nan, dtype=torch.float64)
    row[:4] = torch.stack([rollout.valid.sum(), ended.sum(), lengths.sum(), returns.sum()])
    if len(episodes):
        row[4:_TOTALS] = torch.stack([returns.min(), returns.max()])
    row[_TOTALS : _TOTALS + listed.numel()] = listed.flatten()
    return row


class EpisodeWindow:
    """The returns of the last 20 episodes over all shards, ordered by time and environment."""

    def __init__(self, returns: Sequence[float] = ()) -> None:
        self.returns: deque[float] = deque(returns, maxlen=WINDOW)

    def add(self, rows: Tensor) -> dict[str, float | int | None]:
        """`[S, 86]`, one `episode_row` per shard -> metrics of this iteration, None where no episode ended."""
        _, count, length, total = rows[:, :4].sum(0).tolist()
        listed = rows[:, _TOTALS:].reshape(-1, _COLUMNS)
        self.returns.extend(episode[2] for episode in sorted(listed[~listed[:, 0].isnan()].tolist()))
        extremes = rows[~rows[:, 4].isnan(), 4:_TOTALS]
        return {
            "episodes": int(count),
            "return_mean": total / count if count else None,
            "return_min": extremes[:, 0].min().item() if count else None,
            "return_max": extremes[:, 1].max().item() if count else None,
            "return_mean_20": sum(self.returns) / WINDOW if len(self.returns) == WINDOW else None,
            "length_mean": length / count if count else None,
        }

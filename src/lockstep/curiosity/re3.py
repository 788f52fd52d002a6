"""Random encoders for efficient exploration."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lockstep.curiosity.curiosity import Curiosity, Reduce, States, Transitions, fixed
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces

__all__ = ["RE3", "distances"]

_MOST = 2048
"""Maximum number of observations that can be neighbors."""
_BLOCK = 128
"""Rows whose distances are computed together, so that they stay in the cache."""


class RE3(Curiosity):
    """Distance to the nearest observations, in the features of a random encoder (Seo et al. 2021, arXiv:2102.09430).

        y = f(o), f fixed and random
        reward_t = log(1 + ‖y_{t+1} - its k-th nearest neighbor‖₂), k = `neighbors`

    The average estimates the entropy of the observations, up to constants (Singh et al. 2003). Nothing is trained.

    As in the paper's on-policy variant, neighbors are searched among the observations since the last update; here within a shard, so that
    rewards do not depend on other shards. The first observation of an episode is not a neighbor, because no step led to it. In a rollout of
    more than 2,048 steps only every n-th observation can be a neighbor, so that the cost grows linearly with the number of steps. Unlike in
    the paper, observations are normalized by their running statistics, as for all methods. The paper's decaying weight is a schedule in
    `curiosity.weight`.
    """

    def __init__(self, spaces: Spaces, config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        super().__init__(spaces, config, squash, dtype)
        self.encoder = fixed(self.embedding())

    def reward(self, shards: Sequence[Transitions], states: States, reduce: Reduce) -> list[Tensor]:
        """See `Curiosity.reward`."""
        rewards = []
        for transitions in shards:
            rows, valid = self.embed(self.encoder, transitions)[1:].flatten(0, 1), transitions.valid
            neighbor_distances = distances(rows, valid.flatten(), self.config.neighbors, _stride(*valid.shape))
            rewards.append(neighbor_distances.log1p().view(valid.shape).to(self.dtype))
        return rewards


def distances(rows: Tensor, valid: Tensor, k: int, stride: int) -> Tensor:
    """Return the distance, `[N]` float64, of each of the rows `[N, size]` to its k-th nearest neighbor, counted from 1.

    Only every `stride`-th row can be a neighbor, and only if it is `valid`, `[N]`. With fewer than k neighbors it is the distance to the
    farthest, and 0 without neighbors.
    """
    rows = rows.to(torch.float64)  # distances of close neighbors are differences of large numbers
    neighbors, counted = rows[::stride].t().contiguous(), valid[::stride]
    squares = rows.square().sum(1)
    lengths = torch.where(counted, squares[::stride], torch.inf)
    rank = min(k, int(counted.sum()) - 1)
    nearest = np.zeros(len(rows))
    if rank < 1:
        return torch.from_numpy(nearest)
    buffer = torch.empty(min(_BLOCK, len(rows)), neighbors.shape[1], dtype=torch.float64)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        # ‖x - y‖² - ‖x‖², which has the order of ‖x - y‖
        scores = torch.addmm(lengths, block, neighbors, alpha=-2, out=buffer[: len(block)]).numpy()
        places = np.arange(start, start + len(block))
        selves = np.flatnonzero(places % stride == 0)
        scores[selves, places[selves] // stride] = np.inf
        scores.partition(rank - 1, axis=1)
        nearest[start : start + len(block)] = scores[:, rank - 1]
    return (torch.from_numpy(nearest) + squares).clamp_min(0).sqrt()


def _stride(steps: int, count: int) -> int:
    """Return the distance between rows that can be neighbors, of `steps` × `count`. It is coprime to `count`, so that all environments occur."""
    stride = math.ceil(steps * count / _MOST)
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride

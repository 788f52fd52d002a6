"""Random encoders for efficient exploration."""

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from lockstep.curiosity.curiosity import Curiosity, Reduce, Transitions, fixed
from lockstep.curiosity.settings import CuriosityConfig

if TYPE_CHECKING:
    from lockstep.envs.spaces import Spaces

__all__ = ["RE3", "distances"]

_MOST = 2048
"""Observations that may be neighbours."""
_BLOCK = 128
"""Rows whose distances are looked at together, so that they stay in the cache."""


class RE3(Curiosity):
    """How far is it to the observations that are most like this one (Seo et al. 2021, arXiv:2102.09430)?

        y = f(o), f fixed and random
        reward_t = log(1 + ‖y_{t+1} - its k-th nearest neighbour‖₂), k = `neighbours`

    Averaged, that estimates the entropy of what is observed, up to constants (Singh et al. 2003). Nothing is trained.

    Neighbours are sought as in the paper's on-policy variant, among what was collected since the last update, and here within a shard:
    shards need not know of each other, and as they never change, rewards don't either. The first observation of an episode is no
    neighbour, for no step led to it. Of a rollout beyond 2,048 steps only every n-th observation can be one, so that cost grows with
    the steps and not with their square. Unlike in the paper, observations are shifted and scaled by their moments, as for all methods.
    Its decaying weight is a schedule in `curiosity.weight`.
    """

    def __init__(self, spaces: "Spaces", config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        """See `Curiosity`."""
        super().__init__(spaces, config, squash, dtype)
        self.encoder = fixed(self.embedding())

    def reward(
        self, steps: Sequence[Transitions], carried: Sequence[dict[str, Tensor]], reduce: Reduce
    ) -> list[Tensor]:
        """See `Curiosity.reward`."""
        found = []
        for own in steps:
            rows = self.embed(self.encoder, own)[1:].flatten(0, 1)
            stride = _stride(*own.valid.shape)
            far = distances(rows, own.valid.flatten(), self.config.neighbours, stride)
            found.append(far.log1p().view(own.valid.shape).to(self.dtype))
        return found


def distances(rows: Tensor, valid: Tensor, neighbours: int, stride: int) -> Tensor:
    """`[N]` float64: how far each of the rows `[N, size]` is from the k-th nearest of the others, counted from 1. Only every `stride`-th
    row can be a neighbour, and only if it is `valid`, `[N]`; where there are fewer than k, it is the farthest, and 0 without any.
    """
    rows = rows.to(torch.float64)  # close neighbours are what is left of large numbers
    others, counted = rows[::stride].t().contiguous(), valid[::stride]
    squares = rows.square().sum(1)
    lengths = torch.where(counted, squares[::stride], torch.inf)
    rank = min(neighbours, int(counted.sum()) - 1)
    found = np.zeros(len(rows))
    if rank < 1:
        return torch.from_numpy(found)
    room = torch.empty(min(_BLOCK, len(rows)), others.shape[1], dtype=torch.float64)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        # ‖x - y‖² - ‖x‖², which has the order of ‖x - y‖
        near = torch.addmm(lengths, block, others, alpha=-2, out=room[: len(block)]).numpy()
        places = np.arange(start, start + len(block))
        selves = np.flatnonzero(places % stride == 0)
        near[selves, places[selves] // stride] = np.inf
        near.partition(rank - 1, axis=1)
        found[start : start + len(block)] = near[:, rank - 1]
    return (torch.from_numpy(found) + squares).clamp_min(0).sqrt()


def _stride(steps: int, count: int) -> int:
    """Between rows that can be neighbours, of `steps` times `count`. It has no divisor in common with `count`, so all environments are seen."""
    stride = math.ceil(steps * count / _MOST)
    while math.gcd(stride, count) > 1:
        stride += 1
    return stride

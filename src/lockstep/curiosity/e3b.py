"""Exploration via elliptical episodic bonuses."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.curiosity.curiosity import Images, Reduce, States, Transitions
from lockstep.curiosity.inverse import InverseDynamicsCuriosity

__all__ = ["E3B"]

_BLOCK = 64
"""Rows that are added to the ellipsoid in one operation."""


class E3B(InverseDynamicsCuriosity):
    """Elliptical episodic bonus (Henaff et al. 2022, arXiv:2210.05805, section 3, algorithm 1).

        C_t = λ I + Σ_{s ≤ t} φ(o_s) φ(o_s)ᵀ                      over the episode, from its first observation on
        reward_t = φ(o_{t+1})ᵀ C_t⁻¹ φ(o_{t+1})
        L = -log P(a_t | φ(o_t), φ(o_{t+1}))                     training objective of φ

    The paper updates C⁻¹ step by step (Sherman-Morrison). Here C itself is stored, in which errors do not accumulate, and many steps are
    processed at once, with the same result: see `bonuses`. C contains the φ of the iteration that collected each observation.
    """

    losses = ("inverse_loss",)

    def initial_state(self, count: int) -> dict[str, Tensor]:
        """Return the initial C of every environment."""
        size = self.config.feature_size
        return {"ellipsoid": self.config.ridge * torch.eye(size, dtype=torch.float64).repeat(count, 1, 1)}

    def reward(self, shards: Sequence[Transitions], states: States, reduce: Reduce) -> list[Tensor]:
        """See `Curiosity.reward`."""
        rewards = []
        for transitions, state in zip(shards, states, strict=True):
            rows = self.embed(self.inverse.features, transitions).to(torch.float64).transpose(0, 1)
            row_bonuses = bonuses(rows, transitions.episodes.T, state["ellipsoid"], self.config.ridge)
            rewards.append(row_bonuses[:, 1:].T.to(self.dtype).contiguous())
        return rewards

    def loss(self, columns: Tensor, images: Images) -> Tensor:
        """See `Curiosity.loss`."""
        inverse, _, _ = self.inverse(columns, images)
        losses: Tensor = inverse[:, None]
        return losses


def bonuses(rows: Tensor, episodes: Tensor, ellipsoid: Tensor, ridge: float) -> Tensor:
    """Return φᵀ C⁻¹ φ for every row, with the C of the earlier rows of its episode, `[B, T + 1]`.

    With G = Φ C⁻¹ Φᵀ for the rows Φ of a block and the C before it, and L the Cholesky factor of I + G, the bonus of row t, after the
    earlier rows of the block, is L_tt² - 1: by the Woodbury identity it is G_tt - g (I + G_<t)⁻¹ gᵀ, and 1 plus that is the pivot, the square
    of L_tt. Rows of different episodes are independent, so G is 0 there.

    Args:
        rows: `[B, T + 1, size]`, float64.
        episodes: `[B, T + 1]`: which episode a row belongs to; `ellipsoid` is of 0.
        ellipsoid: `[B, size, size]`: C before the first row. It is replaced by C of the last row's episode without that row, because that row is
            the first one of the next rollout.
        ridge: λ.
    """
    ends, size = rows.shape[1] - 1, rows.shape[2]
    start = ridge * torch.eye(size, dtype=rows.dtype)
    current, row_bonuses = torch.zeros_like(episodes[:, :1]), []
    for first in range(0, ends + 1, _BLOCK):
        block, numbers = rows[:, first : first + _BLOCK], episodes[:, first : first + _BLOCK]
        continues = (numbers == current)[..., None]
        root = torch.linalg.cholesky_ex(ellipsoid).L  # what is not finite stays so, and is found in the loss
        within = torch.linalg.solve_triangular(root, block.mT, upper=False).mT
        scaled = torch.where(continues, within, block / math.sqrt(ridge))
        inner = (scaled @ scaled.mT) * (numbers[:, :, None] == numbers[:, None])
        inner.diagonal(dim1=1, dim2=2).add_(1)
        pivots = torch.linalg.cholesky_ex(inner).L.diagonal(dim1=1, dim2=2)
        row_bonuses.append(pivots.square() - 1)
        current = numbers[:, -1:]
        counted = (numbers == current)[..., None]
        counted[:, ends - first :] = False
        added = block * counted
        ellipsoid.copy_(torch.where(continues[:, -1:], ellipsoid, start) + added.mT @ added)
    return torch.cat(row_bonuses, 1).clamp_min(0)

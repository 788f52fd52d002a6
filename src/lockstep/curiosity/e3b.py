"""Exploration via elliptical episodic bonuses."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.curiosity.curiosity import Images, Reduce, Transitions
from lockstep.curiosity.inverse import Controlled

__all__ = ["E3B"]

_BLOCK = 64
"""Rows that are added to the ellipsoid at a time."""


class E3B(Controlled):
    """How far out of the ellipsoid of what the episode has shown (Henaff et al. 2022, arXiv:2210.05805, section 3, algorithm 1).

        C_t = λ I + Σ_{s ≤ t} φ(o_s) φ(o_s)ᵀ                      over the episode, from its first observation on
        reward_t = φ(o_{t+1})ᵀ C_t⁻¹ φ(o_{t+1})
        L = -log P(a_t | φ(o_t), φ(o_{t+1}))                     what φ is trained by

    The paper brings C⁻¹ up to date step by step (Sherman-Morrison). Here C itself is carried, a sum in which no errors grow, and many steps
    are done at once, with the same result: see `bonuses`. What C holds of an episode stays as the φ of the iteration that saw it.
    """

    losses = ("inverse_loss",)

    def carry(self, count: int) -> dict[str, Tensor]:
        """C of every environment, of what came before row 0 of the next rollout."""
        size = self.config.feature_size
        return {"ellipsoid": self.config.ridge * torch.eye(size, dtype=torch.float64).repeat(count, 1, 1)}

    def reward(
        self, steps: Sequence[Transitions], carried: Sequence[dict[str, Tensor]], reduce: Reduce
    ) -> list[Tensor]:
        """See `Curiosity.reward`."""
        found = []
        for own, kept in zip(steps, carried, strict=True):
            rows = self.embed(self.inverse.features, own).to(torch.float64).transpose(0, 1)
            every = bonuses(rows, own.episodes.T, kept["ellipsoid"], self.config.ridge)
            found.append(every[:, 1:].T.to(self.dtype).contiguous())
        return found

    def loss(self, columns: Tensor, images: Images) -> Tensor:
        """See `Curiosity.loss`."""
        inverse, _, _ = self.inverse(columns, images)
        found: Tensor = inverse[:, None]
        return found


def bonuses(rows: Tensor, episodes: Tensor, ellipsoid: Tensor, ridge: float) -> Tensor:
    """φᵀ C⁻¹ φ for every row, C being that of the rows before it in its episode: `[B, T + 1]`.

    With G = Φ C⁻¹ Φᵀ for the rows Φ of a block and C as it was before, and L the Cholesky factor of I + G, row t's bonus after those of the
    block before it is L_tt² - 1: by Woodbury it is G_tt - g (I + G_<t)⁻¹ gᵀ, and 1 plus that is the pivot that L_tt is the root of. Rows of
    different episodes have nothing to do with each other, so there G is 0.

    Args:
        rows: `[B, T + 1, size]`, float64.
        episodes: `[B, T + 1]`: which episode a row belongs to; `ellipsoid` is of 0.
        ellipsoid: `[B, size, size]`: C before the rows; in place, of the last row's episode before that row, which begins the next rollout.
        ridge: λ.
    """
    ends, size = rows.shape[1] - 1, rows.shape[2]
    start = ridge * torch.eye(size, dtype=rows.dtype)
    present, found = torch.zeros_like(episodes[:, :1]), []
    for at in range(0, ends + 1, _BLOCK):
        own, numbers = rows[:, at : at + _BLOCK], episodes[:, at : at + _BLOCK]
        known = (numbers == present)[..., None]
        root = torch.linalg.cholesky_ex(ellipsoid).L  # what is not finite stays so, and is found in the loss
        within = torch.linalg.solve_triangular(root, own.mT, upper=False).mT
        scaled = torch.where(known, within, own / math.sqrt(ridge))
        inner = (scaled @ scaled.mT) * (numbers[:, :, None] == numbers[:, None])
        inner.diagonal(dim1=1, dim2=2).add_(1)
        pivots = torch.linalg.cholesky_ex(inner).L.diagonal(dim1=1, dim2=2)
        found.append(pivots.square() - 1)
        present = numbers[:, -1:]
        counted = (numbers == present)[..., None]
        counted[:, ends - at :] = False
        added = own * counted
        ellipsoid.copy_(torch.where(known[:, -1:], ellipsoid, start) + added.mT @ added)
    return torch.cat(found, 1).clamp_min(0)

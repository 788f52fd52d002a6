"""Never give up."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lockstep.curiosity.curiosity import Images, Reduce, Transitions
from lockstep.curiosity.inverse import InverseDynamics
from lockstep.curiosity.rnd import RND
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.models.normalization import RunningStatistics

if TYPE_CHECKING:
    from lockstep.envs.spaces import Spaces

__all__ = ["NGU"]

_EPSILON = 1e-4
_CLUSTER = 8e-3
_CONSTANT = 1e-3
_SIMILAR = 8.0
_LIMIT = 5.0
_BLOCK = 64
"""Rows that are compared at a time."""
_SCORES = 2**19
"""Distances that are held at a time, unless one environment has more."""
_TINY = 1e-30
_MEANS = ("distances", "errors")


class NGU(RND):
    """Far from what the episode has shown, times how new that is to the run (Badia et al. 2020, arXiv:2002.06038, section 2).

        reward_t = episodic_t · min(max(α_t, 1), L)               equation 1
        episodic_t = 1 / s, or 0 where s > s_m                    equation 2, algorithm 1
        s = √(Σ_i K_i) + c
        K_i = ε / (max(d_i / d_m² - ξ, 0) + ε)                   equation 3, algorithm 1: d_m² is the running mean of the d_i
        d_i = ‖φ(o_{t+1}) - φ_i‖²                                 to the k nearest φ_i of what the episode has shown before
        α_t = 1 + (error_t - mean) / std                          of RND's error; mean and standard deviation are running

    with ε = 1e-4, ξ = 0.008, c = 0.001, s_m = 8 and L = 5, as in its appendix. φ is trained to tell which action was taken, RND's predictor
    as in `RND`. What is running is over the whole run, the present iteration included, where the paper's actors have means of their own. The
    paper leaves open what happens while an episode has shown fewer than k observations: no reward, as in public implementations (Deep RL
    Zoo, DI-engine). Of long episodes the last `capacity` observations are remembered, with the φ of the iteration that saw them.
    """

    losses = ("inverse_loss", "rnd_loss")

    def __init__(self, spaces: "Spaces", config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        """See `Curiosity`."""
        super().__init__(spaces, config, squash, dtype)
        self.inverse = InverseDynamics(self)
        self.moments |= {name: RunningStatistics(1) for name in _MEANS}
        self.refresh()

    def carry(self, count: int) -> dict[str, Tensor]:
        """What the episodes have shown before row 0 of the next rollout: the last `filled` rows of `memory`."""
        memory = torch.zeros(count, self.config.capacity, self.config.feature_size, dtype=self.dtype)
        return {"memory": memory, "filled": torch.zeros(count, dtype=torch.int64)}

    @torch.no_grad()
    def reward(
        self, steps: Sequence[Transitions], carried: Sequence[dict[str, Tensor]], reduce: Reduce
    ) -> list[Tensor]:
        """See `Curiosity.reward`."""
        found, sums = [], []
        for own, kept in zip(steps, carried, strict=True):
            distances, known = self._neighbours(own, kept)
            errors = self.errors(own)
            counted = (distances.mean(-1), known), (errors, own.valid)
            parts = [
                self.moments[name].sums(x.view(-1, 1), which.flatten())
                for name, (x, which) in zip(_MEANS, counted, strict=True)
            ]
            sums.append(torch.cat(parts))
            found.append((distances, known, errors))
        total = reduce(torch.stack(sums))
        for name, part in zip(_MEANS, total.split(RunningStatistics.width(1)), strict=True):
            self.moments[name].merge(part, self.moments[name].mean)
        return [self._combined(*own) for own in found]

    def _neighbours(self, steps: Transitions, kept: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Of what each step led to: squared distances to its nearest, `[T, B, k]`, and whether there are k, `[T, B]`; `kept` goes on."""
        features = self.embed(self.inverse.features, steps).transpose(0, 1)
        memory, filled = kept["memory"], kept["filled"]
        (count, capacity, _), neighbours = memory.shape, self.config.neighbours
        held = max(neighbours, int(filled.max()))  # the rest of the memory is empty
        first = windows(steps.valid, filled, held, capacity)
        together = max(1, _SCORES // (_BLOCK * (capacity + _BLOCK)))
        found = []
        for at in range(0, count, together):
            own = slice(at, at + together)
            rows = torch.cat([memory[own, capacity - held :], features[own]], 1)
            found.append(nearest(rows, first[own], neighbours))
            after = rows[:, :-1][:, -capacity:]
            memory[own, capacity - after.shape[1] :] = after
        sizes = held + torch.arange(first.shape[1]) - first
        filled.copy_(sizes[:, -1])
        return torch.cat(found).transpose(0, 1).contiguous(), (sizes >= neighbours).T[1:]

    def _combined(self, distances: Tensor, known: Tensor, errors: Tensor) -> Tensor:
        """One shard's rewards, `[T, B]`."""
        relative = distances / self.moments["distances"].mean.clamp_min(_TINY)
        kernels = _EPSILON / ((relative - _CLUSTER).clamp_min(0) + _EPSILON)
        similarity = kernels.sum(-1).sqrt() + _CONSTANT
        episodic = torch.where(known & (similarity <= _SIMILAR), similarity.reciprocal(), 0)
        life_long = 1 + (errors - self.moments["errors"].mean) / self.moments["errors"].std
        return (episodic * life_long.clamp(1, _LIMIT)).to(self.dtype)

    @property
    def width(self) -> int:
        """See `Curiosity.width`."""
        return self.inverse.width + super().width

    def columns(self, steps: Transitions) -> Tensor:
        """What the inverse loss is to see, then what that of RND is."""
        return torch.cat([self.inverse.columns(steps), super().columns(steps)], 1)

    def loss(self, columns: Tensor, images: Images) -> Tensor:
        """See `Curiosity.loss`."""
        own, rest = columns.split([self.inverse.width, columns.shape[1] - self.inverse.width], 1)
        inverse, _, _ = self.inverse(own, images)
        return torch.cat([inverse[:, None], super().loss(rest, images)], 1)


def windows(valid: Tensor, filled: Tensor, held: int, capacity: int) -> Tensor:
    """Where the memory of each of a rollout's rows begins, `[B, T + 1]`, counted in `held` carried rows with the rollout after them.

    Row r has the place `held + r`. Its memory goes from the first row of its episode, but at most `capacity` back, to the row before it.

    Args:
        valid: `[T, B]`, as in `Steps`.
        filled: `[B]`: how many of the carried rows, the last ones, are of the episode that the rollout begins with.
        held: See above.
        capacity: See above.
    """
    places = held + torch.arange(len(valid) + 1)[:, None]
    begun = torch.where(valid, 0, places[1:])
    first = torch.cat([held - filled[None], begun]).cummax(0).values
    return torch.maximum(first, places - capacity).T


def nearest(rows: Tensor, first: Tensor, count: int) -> Tensor:
    """Squared distances of a rollout's rows 1, 2, … to the `count` nearest of their memories, `[B, T, count]` float64, ascending.

    Which are nearest is told by |y|² - 2 x y, about a mean so that little cancels; how far they are, by differences. A memory with fewer
    than `count` rows gives numbers that mean nothing.

    Args:
        rows: `[B, held + T + 1, size]`: carried rows, at least `count`, with the rollout after them.
        first: See `windows`.
        count: k.
    """
    ends, size = rows.shape[1:]
    held = ends - first.shape[1]
    keys = rows.new_empty(len(rows), ends, size + 1)
    about = torch.sub(rows, rows[:, held:].mean(1, keepdim=True), out=keys[..., :size])
    keys[..., size] = about.square().sum(-1)
    asked = torch.cat([-2 * about, torch.ones_like(about[..., :1])], -1)
    flat, offset = rows.flatten(0, 1), ends * torch.arange(len(rows))[:, None, None]
    found = []
    for start in range(held + 1, ends, _BLOCK):
        own = torch.arange(start, min(start + _BLOCK, ends))
        begin = first[:, own - held, None]
        low, high, inner = min(int(begin.min()), start - count), int(own[-1]), int(begin.max())
        scores = torch.bmm(asked[:, start : high + 1], keys[:, low:high].mT)
        scores[..., : inner - low].masked_fill_(torch.arange(low, inner) < begin, torch.inf)
        scores[..., start - low :].masked_fill_(torch.arange(start, high) >= own[:, None], torch.inf)
        picked = scores.topk(count, largest=False).indices + low
        apart = flat[picked + offset] - rows[:, start : high + 1, None]
        found.append(apart.to(torch.float64).square().sum(-1))
    return torch.cat(found, 1)

"""The Never Give Up method."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.curiosity.curiosity import Images, Reduce, States, Transitions
from lockstep.curiosity.inverse import InverseDynamics
from lockstep.curiosity.rnd import RND
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.spaces import Spaces
from lockstep.models.normalization import RunningStatistics

__all__ = ["NGU"]

_EPSILON = 1e-4
_CLUSTER = 8e-3
_CONSTANT = 1e-3
_SIMILAR = 8.0
_LIMIT = 5.0
_BLOCK = 64
"""Rows that are compared in one operation."""
_SCORES = 2**19
"""Maximum number of distances in memory at once, unless a single environment has more."""
_TINY = 1e-30
_MEANS = ("distances", "errors")


class NGU(RND):
    """Episodic novelty times life-long novelty (Badia et al. 2020, arXiv:2002.06038, section 2).

        reward_t = episodic_t · min(max(α_t, 1), L)               equation 1
        episodic_t = 1 / s, or 0 where s > s_m                    equation 2, algorithm 1
        s = √(Σ_i K_i) + c
        K_i = ε / (max(d_i / d_m² - ξ, 0) + ε)                   equation 3, algorithm 1: d_m² is the running mean of the d_i
        d_i = ‖φ(o_{t+1}) - φ_i‖²                                 to the k nearest φ_i of earlier observations of the episode
        α_t = 1 + (error_t - mean) / std                          of RND's error; mean and standard deviation are running

    with ε = 1e-4, ξ = 0.008, c = 0.001, s_m = 8 and L = 5, as in its appendix. φ is trained to predict actions, and RND's predictor
    as in `RND`. Running statistics are over the whole run, including the current iteration; in the paper every actor has its own. The
    paper does not define the reward of an episode's first k observations; it is 0 here, as in public implementations (Deep RL Zoo,
    DI-engine). The last `capacity` observations of an episode are stored, with the φ of the iteration that collected them.
    """

    losses = ("inverse_loss", "rnd_loss")

    def __init__(self, spaces: Spaces, config: CuriosityConfig, squash: bool, dtype: torch.dtype) -> None:
        super().__init__(spaces, config, squash, dtype)
        self.inverse = InverseDynamics(self)
        self.statistics |= {name: RunningStatistics(1) for name in _MEANS}
        self.refresh()

    def initial_state(self, count: int) -> dict[str, Tensor]:
        """Return empty memories: the last `filled` rows of `memory` hold the features of the current episode."""
        memory = torch.zeros(count, self.config.capacity, self.config.feature_size, dtype=self.dtype)
        return {"memory": memory, "filled": torch.zeros(count, dtype=torch.int64)}

    @torch.no_grad()
    def reward(self, shards: Sequence[Transitions], states: States, reduce: Reduce) -> list[Tensor]:
        """See `Curiosity.reward`."""
        inputs, sums = [], []
        for transitions, state in zip(shards, states, strict=True):
            distances, known = self._neighbors(transitions, state)
            errors = self.errors(transitions)
            counted = (distances.mean(-1), known), (errors, transitions.valid)
            parts = [
                self.statistics[name].sums(values.view(-1, 1), mask.flatten())
                for name, (values, mask) in zip(_MEANS, counted, strict=True)
            ]
            sums.append(torch.cat(parts))
            inputs.append((distances, known, errors))
        total = reduce(torch.stack(sums))
        for name, part in zip(_MEANS, total.split(RunningStatistics.width(1)), strict=True):
            self.statistics[name].merge(part, self.statistics[name].mean)
        return [self._combine(*shard_inputs) for shard_inputs in inputs]

    def _neighbors(self, transitions: Transitions, state: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return, for the next observation of each step, the squared distances to its k nearest neighbors, `[T, B, k]`, and `[T, B]` bool, whether
        there are k. Updates the memory in `state`.
        """
        features = self.embed(self.inverse.features, transitions).transpose(0, 1)
        memory, filled = state["memory"], state["filled"]
        (count, capacity, _), neighbors = memory.shape, self.config.neighbors
        held = max(neighbors, int(filled.max()))  # the rest of the memory is empty
        first = windows(transitions.valid, filled, held, capacity)
        group_size = max(1, _SCORES // (_BLOCK * (capacity + _BLOCK)))
        distances = []
        for start in range(0, count, group_size):
            group = slice(start, start + group_size)
            rows = torch.cat([memory[group, capacity - held :], features[group]], 1)
            distances.append(nearest(rows, first[group], neighbors))
            kept_rows = rows[:, :-1][:, -capacity:]
            memory[group, capacity - kept_rows.shape[1] :] = kept_rows
        sizes = held + torch.arange(first.shape[1]) - first
        filled.copy_(sizes[:, -1])
        return torch.cat(distances).transpose(0, 1).contiguous(), (sizes >= neighbors).T[1:]

    def _combine(self, distances: Tensor, known: Tensor, errors: Tensor) -> Tensor:
        relative = distances / self.statistics["distances"].mean.clamp_min(_TINY)
        kernels = _EPSILON / ((relative - _CLUSTER).clamp_min(0) + _EPSILON)
        similarity = kernels.sum(-1).sqrt() + _CONSTANT
        episodic = torch.where(known & (similarity <= _SIMILAR), similarity.reciprocal(), 0)
        life_long = 1 + (errors - self.statistics["errors"].mean) / self.statistics["errors"].std
        return (episodic * life_long.clamp(1, _LIMIT)).to(self.dtype)

    @property
    def width(self) -> int:
        """See `Curiosity.width`."""
        return self.inverse.width + super().width

    def columns(self, transitions: Transitions) -> Tensor:
        """Return the inputs of the inverse loss, then those of RND's loss."""
        return torch.cat([self.inverse.columns(transitions), super().columns(transitions)], 1)

    def loss(self, columns: Tensor, images: Images) -> Tensor:
        """See `Curiosity.loss`."""
        inverse_columns, rnd_columns = columns.split([self.inverse.width, columns.shape[1] - self.inverse.width], 1)
        inverse, _, _ = self.inverse(inverse_columns, images)
        return torch.cat([inverse[:, None], super().loss(rnd_columns, images)], 1)


def windows(valid: Tensor, filled: Tensor, held: int, capacity: int) -> Tensor:
    """Return the first index of the memory of each row of a rollout, `[B, T + 1]`, in an array of `held` stored rows and then the rollout.

    Row r has the index `held + r`. Its memory starts at the first row of its episode, at most `capacity` rows back, and ends before r.
    `valid` is `[T, B]`, as in `Transitions`; the last `filled` `[B]` stored rows belong to the episode with which the rollout begins.
    """
    indices = held + torch.arange(len(valid) + 1)[:, None]
    episode_starts = torch.where(valid, 0, indices[1:])
    first = torch.cat([held - filled[None], episode_starts]).cummax(0).values
    return torch.maximum(first, indices - capacity).T


def nearest(rows: Tensor, first: Tensor, count: int) -> Tensor:
    """Return the squared distances of a rollout's rows 1, 2, … to the `count` nearest rows of their memories, `[B, T, count]` float64, ascending.

    The nearest rows are found by |y|² - 2 x y, relative to the mean to reduce cancellation; their distances are computed from differences.
    `rows` are `[B, held + T + 1, size]`: stored rows, at least `count`, then the rollout; `first` is that of `windows`. Results for a memory
    with fewer than `count` rows are undefined.
    """
    ends, size = rows.shape[1:]
    held = ends - first.shape[1]
    keys = rows.new_empty(len(rows), ends, size + 1)
    centered = torch.sub(rows, rows[:, held:].mean(1, keepdim=True), out=keys[..., :size])
    keys[..., size] = centered.square().sum(-1)
    queries = torch.cat([-2 * centered, torch.ones_like(centered[..., :1])], -1)
    flat, offset = rows.flatten(0, 1), ends * torch.arange(len(rows))[:, None, None]
    distances = []
    for start in range(held + 1, ends, _BLOCK):
        block = torch.arange(start, min(start + _BLOCK, ends))
        begin = first[:, block - held, None]
        low, high, inner = min(int(begin.min()), start - count), int(block[-1]), int(begin.max())
        scores = torch.bmm(queries[:, start : high + 1], keys[:, low:high].mT)
        scores[..., : inner - low].masked_fill_(torch.arange(low, inner) < begin, torch.inf)
        scores[..., start - low :].masked_fill_(torch.arange(start, high) >= block[:, None], torch.inf)
        selected = scores.topk(count, largest=False).indices + low
        differences = flat[selected + offset] - rows[:, start : high + 1, None]
        distances.append(differences.to(torch.float64).square().sum(-1))
    return torch.cat(distances, 1)

"""The error for values that are not finite, and the search for the first one in the rollouts of an iteration."""

from collections.abc import Sequence

import torch
from torch import Tensor

from lockstep.group.group import Group
from lockstep.rollout import Rollout

__all__ = ["NonFinite", "NonFiniteWeights", "locate_non_finite"]


class NonFinite(ArithmeticError):
    """A loss or gradient is NaN or infinite. The weights are still those of the last good step."""


class NonFiniteWeights(NonFinite):
    """The weights that a checkpoint would save are not finite. All ranks raise it together."""


_KINDS = ("observation", "reward", "estimate", "log-probability")
"""Kinds of values, each of which can make the later ones non-finite."""
_ADVICE = {
    "observation": "check the environment",
    "reward": "check the environment",
    "estimate": "the weights have diverged: lower ppo.learning_rate",
    "log-probability": "the weights have diverged: lower ppo.learning_rate",
}


def locate_non_finite(
    rollouts: Sequence[Rollout], shards: Sequence[int], iteration: int, group: Group, fused: bool
) -> str | None:
    """Describe the first value that is not finite in one line, with its kind, environment and step; None if all are finite.

    Every rank of `group` calls it, with the rollouts and indices of its shards, ascending, and gets the same line: that of the lowest shard.
    With `fused`, a rank contributes one row to the group's operations instead of one per shard.
    """
    rows = [_first(rollout, shard) for shard, rollout in zip(shards, rollouts, strict=True)]
    if fused:
        rows = [next((row for row in rows if row[0]), rows[0])]
    for found, kind, environment, step, value in group.gather(torch.stack(rows), "non-finite").tolist():
        if found:
            name = _KINDS[int(kind)]
            location = f"at step {step:.0f}" if step else "before step 1"
            owner = f"the critic's estimate for environment {environment:.0f}" if name == "estimate" else ""
            owner = owner or f"the {name} of environment {environment:.0f}"
            return f"{owner} is {value} {location} of iteration {iteration}: {_ADVICE[name]}"
    return None


def _first(rollout: Rollout, shard: int) -> Tensor:
    """Return `[5]` float64 for one shard: 1 if a value is not finite, its kind, environment and step, and the value."""
    valid, ongoing = rollout.valid, rollout.valid & ~rollout.terminated
    # an observation counts where a step is taken from it, or where its value is bootstrapped from
    seen = torch.cat([valid, ongoing[-1:]])
    seen[1:] |= ongoing
    candidates = []
    for kind, (values, counted, offset) in enumerate(
        (
            (rollout.observations, seen, 0),
            (rollout.rewards.unsqueeze(-1), valid, 1),
            (rollout.values.unsqueeze(-1), seen, 0),
            (rollout.log_probs.unsqueeze(-1), valid, 1),
        )
    ):
        wrong = ~values.isfinite() & counted.unsqueeze(-1)
        if wrong.any():
            step, environment, column = wrong.nonzero()[0].tolist()  # row by row, so the earliest step comes first
            number = float(values[step, environment, column])
            index = shard * counted.shape[1] + environment
            candidates.append((step + offset, kind, index, number))
    if not candidates:
        return torch.zeros(5, dtype=torch.float64)
    step, kind, index, number = min(candidates, key=lambda candidate: candidate[:2])
    return torch.tensor([1, kind, index, step, number], dtype=torch.float64)

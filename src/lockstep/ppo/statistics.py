"""What an update tells about itself, summed over its minibatches."""

from collections.abc import Sequence

__all__ = ["KL", "STATISTICS", "MeanAccumulator"]

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_frac")
"""Means over a minibatch, in the order in which they travel behind the gradient."""
KL = STATISTICS.index("approx_kl")


class MeanAccumulator:
    """Means over minibatches, each over those that trained the part it speaks of."""

    def __init__(self, minibatches: int, others: Sequence[str] = ()) -> None:
        """`minibatches` per epoch. `others` are names of what comes behind STATISTICS, and is trained by every minibatch."""
        self._minibatches = minibatches
        self._names = (*STATISTICS, *others)
        self._sums = [0.0] * len(self._names)
        self._norms = 0.0
        self._steps = self._policy_steps = self._value_steps = 0
        self._kls: list[float] = []

    def add(self, found: Sequence[float], norm: float, policy: bool, value: bool) -> None:
        """Takes in a minibatch's STATISTICS and gradient norm; `policy` and `value` say which of the two it trained."""
        self._sums = [before + now for before, now in zip(self._sums, found, strict=True)]
        self._norms += norm
        self._steps += 1
        self._policy_steps += policy
        self._value_steps += value
        if policy:
            self._kls = [*(self._kls if len(self._kls) < self._minibatches else []), found[KL]]

    def metrics(self) -> dict[str, float]:
        """The means, and `last_kl`: that of the last epoch that trained the policy."""
        others = len(self._names) - len(STATISTICS)
        counts = (self._policy_steps, self._value_steps, *[self._policy_steps] * 3, *[self._steps] * others)
        means = [summed / max(count, 1) for summed, count in zip(self._sums, counts, strict=True)]
        return dict(zip(self._names, means, strict=True)) | {
            "last_kl": sum(self._kls) / len(self._kls),
            "grad_norm": self._norms / self._steps,
            "update_steps": self._steps,
        }

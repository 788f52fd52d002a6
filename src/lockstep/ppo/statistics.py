"""Statistics of an update, averaged over its minibatches."""

from collections.abc import Sequence

__all__ = ["KL", "STATISTICS", "MeanAccumulator"]

STATISTICS = ("policy_loss", "value_loss", "entropy", "approx_kl", "clip_frac")
"""Names of the means over a minibatch, in the order of the columns that follow the gradient in its row."""
KL = STATISTICS.index("approx_kl")


class MeanAccumulator:
    """Means of statistics over the minibatches of an update; for the policy or the critic, those that trained it."""

    def __init__(self, minibatches: int, others: Sequence[str] = ()) -> None:
        """Create an accumulator for `minibatches` per epoch. `others` follow STATISTICS, averaged over all minibatches."""
        self._minibatches = minibatches
        self._names = (*STATISTICS, *others)
        self._sums = [0.0] * len(self._names)
        self._norms = 0.0
        self._steps = self._policy_steps = self._value_steps = 0
        self._kls: list[float | None] = []

    def add(self, statistics: Sequence[float], norm: float, policy: bool, value: bool) -> None:
        """Add statistics and gradient norm of a minibatch; `policy` and `value` are True if it trained that group."""
        self._sums = [total + statistic for total, statistic in zip(self._sums, statistics, strict=True)]
        self._norms += norm
        self._steps += 1
        self._policy_steps += policy
        self._value_steps += value
        if policy:
            self._add_kl(statistics[KL])

    def skip(self, policy: bool) -> None:
        """Count a minibatch whose gradient step was skipped; `policy` is True if the step would have trained the policy."""
        if policy:
            self._add_kl(None)

    def _add_kl(self, kl: float | None) -> None:
        self._kls = [*(self._kls if len(self._kls) < self._minibatches else []), kl]

    def metrics(self) -> dict[str, float]:
        """Return the means, and `last_kl`: the mean KL of the last epoch that trained the policy.

        Also return `grad_norm`, averaged over all minibatches, and `update_steps`, the number of gradient steps. Without gradient steps
        there are no means, and no `last_kl` if all minibatches of that epoch were skipped.
        """
        if not self._steps:
            return {"update_steps": 0}
        kls = [kl for kl in self._kls if kl is not None]
        others = len(self._names) - len(STATISTICS)
        counts = (self._policy_steps, self._value_steps, *[self._policy_steps] * 3, *[self._steps] * others)
        means = [summed / max(count, 1) for summed, count in zip(self._sums, counts, strict=True)]
        return dict(zip(self._names, means, strict=True)) | {
            **({"last_kl": sum(kls) / len(kls)} if kls else {}),
            "grad_norm": self._norms / self._steps,
            "update_steps": self._steps,
        }

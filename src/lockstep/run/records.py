"""Records of one iteration, a row per shard, which the ranks that train gather from each other."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lockstep.algorithm.plan import Plan
from lockstep.rollout import PLAYER_FIELDS, Rollout
from lockstep.run.episodes import EPISODE_ROW, write_episode_row

__all__ = ["FOLDER_LOST", "HOOK_STOPS", "IdleTimes", "ShardRecords", "pack_records"]

_TRAINER = ("digest", "iter", "wait", "stop")
"""Entries of the shard's trainer: leading bits of the digest, seconds since the trainer's last record, seconds of these
that it waited, and the number of the signal that requested a stop (0: none; HOOK_STOPS: a hook ends training; FOLDER_LOST: rank 0 can't find the run folder)."""
HOOK_STOPS, FOLDER_LOST = -1, -2
_PLAYER_END = len(_TRAINER) + len(PLAYER_FIELDS)
_EPISODES_END = _PLAYER_END + EPISODE_ROW
_FAULTS = _EPISODES_END
_TAKEN = _FAULTS + 1
_INFOS = _TAKEN + 1
_TRAINER_TIMES = _TRAINER.index("iter"), _TRAINER.index("wait")
_PLAYER_TIMES = len(_TRAINER) + PLAYER_FIELDS.index("iter"), len(_TRAINER) + PLAYER_FIELDS.index("wait")


def pack_records(trainer: Sequence[float], shards: Sequence[int], rollouts: Sequence[Rollout]) -> Tensor:
    """Pack the records of the shards that this rank trains on into rows `[shards, columns]` float64.

    `shards` are their numbers, ascending, and `trainer` has the entries `_TRAINER`.
    """
    infos = rollouts[0].infos.shape[2]
    rows = torch.empty(len(shards), _INFOS + 2 * infos, dtype=torch.float64)
    for shard, rollout, row in zip(shards, rollouts, rows.numpy(), strict=True):
        row[: len(_TRAINER)] = trainer
        row[len(_TRAINER) : _PLAYER_END] = rollout.status
        write_episode_row(rollout, shard * rollout.rewards.shape[1], row[_PLAYER_END:_EPISODES_END])
        row[_FAULTS] = int(rollout.faults.sum())
        row[_TAKEN] = int(rollout.taken) / len(rollout.rewards)
        if infos:
            numbers = rollout.infos.numpy()
            row[_INFOS:] = *np.nansum(numbers, axis=(0, 1)), *np.count_nonzero(~np.isnan(numbers), axis=(0, 1))
    return rows


class ShardRecords:
    """Records of all shards in one iteration."""

    def __init__(self, rows: NDArray[np.float64]) -> None:
        """Wrap the gathered rows of `pack_records`, `[shards, columns]`."""
        self.rows = rows

    @property
    def status(self) -> NDArray[np.float64]:
        """Entries of the players, `[shards, 8]`, in the order of `PLAYER_FIELDS`."""
        return self.rows[:, len(_TRAINER) : _PLAYER_END]

    @property
    def episodes(self) -> NDArray[np.float64]:
        """Rows of `write_episode_row`, `[shards, EPISODE_ROW]`."""
        return self.rows[:, _PLAYER_END:_EPISODES_END]

    @property
    def faults(self) -> int:
        """Number of environments that failed and were replaced."""
        return int(self.rows[:, _FAULTS].sum())

    @property
    def preempted(self) -> float:
        """Fraction of the steps that were not taken, because rollouts ended early."""
        return 1 - float(self.rows[:, _TAKEN].mean())

    def info_means(self) -> list[float | None]:
        """Return the means `[K]` of `env.info_metrics` over the episodes that ended; None where no episode has a number."""
        if self.rows.shape[1] == _INFOS:
            return []
        sums, counts = np.split(self.rows[:, _INFOS:].sum(0), 2)
        return [total / count if count else None for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]

    @property
    def digests_agree(self) -> bool:
        """True if all trainers have equal digests."""
        digests = self.rows[:, 0].tolist()
        return all(digest == digests[0] for digest in digests)

    def describe_difference(self, plan: Plan) -> str:
        """Name the trainers whose weights differ from those of the majority; without a majority, say that they differ."""
        digests = dict(zip(plan.trainers, self.rows[:, 0].tolist(), strict=True))
        (most, count), *_ = Counter(digests.values()).most_common()
        if 2 * count <= len(digests):
            return f"ranks {', '.join(map(str, digests))} hold different weights"
        odd = [str(rank) for rank, digest in digests.items() if digest != most]
        ranks, verb = ("rank", "holds") if len(odd) == 1 else ("ranks", "hold")
        return f"{ranks} {', '.join(odd)} {verb} other weights than the {count} other trainers"

    @property
    def stop_requested(self) -> bool:
        """True if a trainer or a player was asked to stop."""
        stop = self.rows[:, len(_TRAINER) - 1 : len(_TRAINER) + 1]  # the trainer's entry, then the player's
        return bool(stop.any())

    @property
    def hook_stops(self) -> bool:
        """True if a hook ends training."""
        return bool((self.rows[:, len(_TRAINER) - 1] == HOOK_STOPS).any())


class IdleTimes:
    """The fraction of time that each rank waits for others, read from the records of a shard that it trains or plays."""

    def __init__(self, plan: Plan, ranks: int) -> None:
        """Find the entries of all ranks: row, column of the seconds, column of the seconds waited."""
        playing = {rank: (plan.played_by(rank)[0], *_PLAYER_TIMES) for rank in plan.playing}
        training = {rank: (plan.trained_by(rank)[0], *_TRAINER_TIMES) for rank in plan.training}
        entries = {**playing, **training}
        self._entries = [entries[rank] for rank in range(ranks)]

    def __call__(self, records: ShardRecords) -> list[float]:
        """Return a fraction in [0, 1] for every rank."""
        # a hook is called with the metrics of every iteration: after an update NumPy's code is no longer in the processor's caches
        item = records.rows.item
        return [round(item(row, waited) / max(item(row, seconds), 1e-9), 4) for row, seconds, waited in self._entries]

"""Iterations of all ranks in time: who waits for whom, for every plan and lag, as in `loop.py` and `algorithm/exchange.py`."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Computation", "Delays", "Timeline", "play"]

Seconds = NDArray[np.float64]


@dataclass(frozen=True)
class Delays:
    """Seconds of communication in every iteration."""

    send: float
    """Time in which a player sends its rollouts."""
    latency: float
    """Time from the end of sending until a trainer can begin to receive."""
    receive: float
    """Time in which a trainer receives its rollouts."""
    reduce: float
    """Time of all reductions of an update, without waiting for late ranks."""
    publish: float
    """Time in which a trainer writes and sends the agent."""
    arrive: Seconds
    """Time from the end of an update until each player has the agent, `[players]`."""


class Computation(NamedTuple):
    """Seconds of computation in every iteration."""

    rollouts: Seconds
    """Collecting, `[iterations, players]`."""
    updates: Seconds
    """Updates, `[iterations, trainers]`."""
    publish: Seconds
    """Digests and records of a trainer after an update, `[iterations]`."""
    record: Seconds
    """Metrics and checkpoints of rank 0, `[iterations]`."""


class Timeline(NamedTuple):
    """Ends of iterations, in seconds from the start."""

    ends: Seconds
    """End of every iteration on rank 0, `[iterations]`."""
    stragglers: float
    """Mean seconds per iteration between the mean and the last rank, at the end of rollouts and of updates."""


def play(computation: Computation, delays: Delays, trains: NDArray[np.bool_], rank0_plays: bool, lag: int) -> Timeline:
    """Compute when every iteration ends on rank 0, which trains.

    `trains` is True for the players that also train, `[players]`. With `rank0_plays`, the first player is rank 0. `lag` is the number of
    updates that the agent of the players is behind.
    """
    rollouts, updates = computation.rollouts, computation.updates
    iterations, players = rollouts.shape
    free, rank0_free = np.zeros(players), 0.0
    arrivals = [np.zeros(players)] * (lag + 1)
    ends = np.empty(iterations)
    for index in range(iterations):
        done = np.maximum(free, arrivals[0]) + rollouts[index] + delays.send
        begin = max(float(done.max()) + delays.latency, rank0_free)
        end = begin + delays.receive + float(updates[index].max()) + delays.reduce
        arrivals = [*arrivals[1:], end + delays.arrive]
        trainers_free = end + float(computation.publish[index]) + delays.publish
        rank0_free = trainers_free + float(computation.record[index])
        free = np.where(trains, trainers_free, done)
        if rank0_plays:
            free[0] = rank0_free
        ends[index] = rank0_free
    late = (rollouts.max(1) - rollouts.mean(1)).mean() + (updates.max(1) - updates.mean(1)).mean()
    return Timeline(ends, float(late))

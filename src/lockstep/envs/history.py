"""What a shard's engine must remember so that its environments can be replayed."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.engine import State
from lockstep.envs.episodes import Past

__all__ = ["History", "check_replay", "check_state", "pasts"]

_PRUNE = 1024
"""Steps between two looks at which actions no running episode needs any more."""


class History:
    """For each of B environments: its episode, whether it waits for its reset, and the actions since its episode began.

    Holds one array of actions per step of the shard, back to the start of the oldest running episode.
    """

    def __init__(self, count: int) -> None:
        self.first = 0
        """Number of the step whose actions are in `rows[0]`."""
        self.rows: list[NDArray[Any]] = []
        self.episodes = np.zeros(count, dtype=np.int64)
        self.starts = np.zeros(count, dtype=np.int64)
        """Number of the step that took the first action of the running episode."""
        self.waiting: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """Environments whose next step is their reset."""

    def add(self, actions: NDArray[Any], terminated: NDArray[Any], truncated: NDArray[Any]) -> None:
        """Notes one step. Keeps `actions`, which nobody may change after."""
        self.rows.append(actions)
        if len(self.waiting):
            self.episodes[self.waiting] += 1
            self.starts[self.waiting] = self.first + len(self.rows)
        self.waiting = (terminated | truncated).nonzero()[0]
        if len(self.rows) % _PRUNE == 0:
            oldest = int(self.starts.min())
            del self.rows[: oldest - self.first]
            self.first = oldest

    def state(self, observations: NDArray[Any], pixels: NDArray[np.uint8]) -> State:
        """As plain arrays; `actions` are those of environment 0, then 1, …, `lengths` of them each. Of images only their digests."""
        lengths = self.first + len(self.rows) - self.starts
        longest = int(lengths.max())
        rows = np.array(self.rows[len(self.rows) - longest :]) if longest else np.zeros((0, len(lengths)), np.float32)
        waiting = np.zeros(len(lengths), dtype=np.bool_)
        waiting[self.waiting] = True
        images = {"images": _digests(pixels)} if pixels.shape[1] else {}
        return {
            "episodes": self.episodes.copy(),
            "waiting": waiting,
            "lengths": lengths,
            "actions": np.concatenate([rows[longest - length :, i] for i, length in enumerate(lengths)]),
            "observations": observations.copy(),
            **images,
        }

    @classmethod
    def of(cls, state: State) -> "History":
        """The history that gave `state`."""
        history = cls(len(state["episodes"]))
        lengths, actions = state["lengths"], state["actions"]
        history.episodes = state["episodes"].copy()
        history.waiting = np.flatnonzero(state["waiting"])
        steps = int(lengths.max())
        history.starts = steps - lengths
        rows = np.zeros((steps, len(lengths), *actions.shape[1:]), dtype=actions.dtype)
        for index, past in enumerate(pasts(state)):
            rows[history.starts[index] :, index] = past.actions
        history.rows = list(rows)
        return history


def pasts(state: State) -> list[Past]:
    """Where each environment was."""
    ends = np.cumsum(state["lengths"]).tolist()
    starts = [0, *ends[:-1]]
    numbers = state["episodes"].tolist()
    return [Past(number, state["actions"][start:end]) for number, start, end in zip(numbers, starts, ends, strict=True)]


def _digests(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """`[B, 16]` of `[B, P]`."""
    return np.array([list(hashlib.blake2b(row.tobytes(), digest_size=16).digest()) for row in pixels], dtype=np.uint8)


def check_replay(state: State, observations: NDArray[Any], pixels: NDArray[np.uint8], first: int, env_id: str) -> None:
    """Raises ValueError for the first environment that is not where it was. `first`: number of the shard's first environment."""
    pairs = [(state["observations"], observations)]
    if pixels.shape[1]:
        pairs.append((state["images"], _digests(pixels)))
    for index in range(len(observations)):
        if any(was.dtype != came.dtype or was[index].tobytes() != came[index].tobytes() for was, came in pairs):
            raise ValueError(
                f"env.id is {env_id!r}: environment {first + index} did not come back to where it was when its actions were replayed; "
                f"use `env.engine: envpool`, or start anew"
            )


def check_state(state: State, count: int, pixel_count: int, env_id: str) -> None:
    """Raises ValueError for a state that is not one of `count` environments with `pixel_count` bytes of images each."""
    names = {"episodes", "waiting", "lengths", "actions", "observations"} | ({"images"} if pixel_count else set())
    if set(state) != names or len(state["episodes"]) != count or state["lengths"].sum() != len(state["actions"]):
        raise ValueError(
            f"env.id is {env_id!r}: the checkpoint does not hold the state of {count} environments of this engine"
        )

"""What a shard's engine must remember so that its environments can be replayed."""

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
        self.episodes = [0] * count
        self.starts = [0] * count
        """Number of the step that took the first action of the running episode."""
        self.waiting: list[int] = []

    def add(self, actions: NDArray[Any], terminated: NDArray[Any], truncated: NDArray[Any]) -> None:
        """Notes one step. Keeps `actions`, which nobody may change after."""
        self.rows.append(actions)
        if self.waiting:
            now = self.first + len(self.rows)
            for index in self.waiting:
                self.episodes[index] += 1
                self.starts[index] = now
        ended = terminated | truncated
        self.waiting = np.flatnonzero(ended).tolist() if np.count_nonzero(ended) else []
        if len(self.rows) % _PRUNE == 0:
            oldest = min(self.starts)
            del self.rows[: oldest - self.first]
            self.first = oldest

    def state(self, observations: NDArray[Any]) -> State:
        """As plain arrays; `actions` are those of environment 0, then 1, …, `lengths` of them each."""
        end = self.first + len(self.rows)
        taken = [row[i] for i, start in enumerate(self.starts) for row in self.rows[start - self.first :]]
        waiting = np.zeros(len(self.starts), dtype=np.bool_)
        waiting[self.waiting] = True
        return {
            "episodes": np.array(self.episodes, dtype=np.int64),
            "waiting": waiting,
            "lengths": np.array([end - start for start in self.starts], dtype=np.int64),
            "actions": np.array(taken) if taken else np.zeros(0, dtype=np.float32),
            "observations": observations.copy(),
        }

    @classmethod
    def of(cls, state: State) -> "History":
        """The history that gave `state`."""
        history = cls(len(state["episodes"]))
        lengths, actions = state["lengths"].tolist(), state["actions"]
        history.episodes = state["episodes"].tolist()
        history.waiting = np.flatnonzero(state["waiting"]).tolist()
        steps = max(lengths)
        history.starts = [steps - length for length in lengths]
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


def check_replay(state: State, observations: NDArray[Any], first: int, env_id: str) -> None:
    """Raises ValueError for the first environment that is not where it was. `first`: number of the shard's first environment."""
    for index, (was, came) in enumerate(zip(state["observations"], observations, strict=True)):
        if was.dtype != came.dtype or was.tobytes() != came.tobytes():
            raise ValueError(
                f"env.id is {env_id!r}: environment {first + index} did not come back to where it was when its actions were replayed; "
                f"use `env.engine: envpool`, or start anew"
            )


def check_state(state: State, count: int, env_id: str) -> None:
    """Raises ValueError for a state that is not one of `count` environments."""
    names = {"episodes", "waiting", "lengths", "actions", "observations"}
    if set(state) != names or len(state["episodes"]) != count or state["lengths"].sum() != len(state["actions"]):
        raise ValueError(
            f"env.id is {env_id!r}: the checkpoint does not hold the state of {count} environments of this engine"
        )

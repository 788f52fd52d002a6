"""What a shard's engine must remember so that its environments can be replayed."""

import hashlib
import logging
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.engine import State
from lockstep.envs.episodes import Past

__all__ = ["History", "check_replay", "check_state", "pasts", "seen_now"]

_BLOCK = 1024
"""Steps of a block of the log."""
_LONG = 100_000
"""Steps of an episode from which its log is worth a warning. The longest known episodes, whole Atari games, have 27,000."""


class History:
    """The log from which B environments are replayed: each one's episode, its actions, and the sum of its rewards.

    Actions lie in blocks of steps, back to the start of the oldest running episode. An episode that never ends keeps all of its
    actions: each step of an environment adds the bytes of its action, here and in every checkpoint.
    """

    def __init__(self, count: int) -> None:
        self._steps = 0
        self._first = 0
        """Number of the step whose actions are first in `blocks[0]`."""
        self.blocks: list[NDArray[Any]] = []
        """`[1024, B, …]` each."""
        self.episodes = np.zeros(count, dtype=np.int64)
        self.starts = np.zeros(count, dtype=np.int64)
        """Number of the step that took the first action of the running episode."""
        self.returns = np.zeros(count)
        """Sums of the rewards of the running episodes, added in the order of the steps."""
        self.waiting: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """Environments whose next step is their reset."""
        self._warned = False

    def record(self, actions: NDArray[Any]) -> None:
        """Copy the actions of the next step. Called before it, because environments may change their actions in place."""
        row = self._steps % _BLOCK
        if row == 0:
            unneeded = (int(self.starts.min()) - self._first) // _BLOCK
            del self.blocks[:unneeded]
            self._first += unneeded * _BLOCK
            self.blocks.append(np.empty((_BLOCK, *actions.shape), dtype=actions.dtype))
        self.blocks[-1][row] = actions
        self._steps += 1

    def add(self, rewards: NDArray[Any], terminated: NDArray[Any], truncated: NDArray[Any]) -> None:
        """Add the results of the step whose actions were recorded last."""
        if len(self.waiting):
            self.episodes[self.waiting] += 1
            self.starts[self.waiting] = self._steps
            self.returns[self.waiting] = 0.0
        self.returns += rewards
        self.waiting = (terminated | truncated).nonzero()[0]

    def state(self, observations: NDArray[Any], pixels: NDArray[np.uint8]) -> State:
        """As plain arrays; `actions` are those of environment 0, then 1, …, `lengths` of them each. Of images only their digests."""
        waiting = np.zeros(len(self.starts), dtype=np.bool_)
        waiting[self.waiting] = True
        kept = [part for index in range(len(self.starts)) for part in self._actions(index)]
        return {
            "episodes": self.episodes.copy(),
            "waiting": waiting,
            "lengths": self._steps - self.starts,
            "returns": self.returns.copy(),
            "actions": np.concatenate(kept or [np.zeros(0, np.float32)]),
            **seen_now(observations, pixels),
        }

    def _actions(self, index: int) -> list[NDArray[Any]]:
        """The actions of one environment's episode, block by block."""
        start, first = int(self.starts[index]), self._first
        numbered = ((first + place * _BLOCK, block) for place, block in enumerate(self.blocks))
        return [block[max(start - at, 0) : self._steps - at, index] for at, block in numbered]

    def warn_if_long(self, first: int, env_id: str) -> None:
        """Log a warning, once, if an episode is so long that its log burdens checkpoints. `first`: see `check_replay`.

        Only the first shard warns: its environments stand for all.
        """
        steps = self._steps - int(self.starts.min())
        if first or self._warned or steps < _LONG:
            return
        self._warned = True
        logging.getLogger("lockstep.envs").warning(
            f"env.id is {env_id!r}: environment {self.starts.argmin()} has taken {steps:,} steps in one episode: every checkpoint holds "
            "their actions, and resume takes all of them again; limit episodes in a new run, with max_episode_steps in env.options or "
            "Gymnasium's TimeLimit"
        )

    @classmethod
    def of(cls, state: State, returns: NDArray[Any]) -> "History":
        """The history that gave `state`. `returns` come from the replay: checkpoints of earlier versions have none."""
        history = cls(len(state["episodes"]))
        lengths, actions = state["lengths"], state["actions"]
        history.episodes = state["episodes"].copy()
        history.waiting = np.flatnonzero(state["waiting"])
        history.returns = returns.copy()
        steps = int(lengths.max())
        history.starts = steps - lengths
        rows = np.zeros((steps, len(lengths), *actions.shape[1:]), dtype=actions.dtype)
        for index, past in enumerate(pasts(state)):
            rows[history.starts[index] :, index] = past.actions
        for row in rows:
            history.record(row)
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


def seen_now(observations: NDArray[Any], pixels: NDArray[np.uint8]) -> State:
    """The part of a state that says where environments are: their observations, and the digests of their images."""
    images = {"images": _digests(pixels)} if pixels.shape[1] else {}
    return {"observations": observations.copy(), **images}


def check_replay(state: State, replayed: State, first: int, env_id: str) -> None:
    """Raises ValueError for the first environment that is not where it was. `first`: number of the shard's first environment."""
    pairs = {name: (was, replayed[name]) for name, was in state.items() if name in replayed}
    for index in range(len(state["episodes"])):
        differing = [
            name
            for name, (was, came) in pairs.items()
            if was.dtype != came.dtype or was[index].tobytes() != came[index].tobytes()
        ]
        if differing == ["returns"]:
            raise ValueError(
                f"env.id is {env_id!r}: environment {first + index} gave other rewards when its actions were replayed: its rewards "
                "depend on more than the episode's seed and actions, for example through NormalizeReward or another wrapper with "
                "state across episodes; make the environment without it and set ppo.normalize_rewards in a new run"
            )
        if differing:
            raise ValueError(
                f"env.id is {env_id!r}: environment {first + index} did not come back to where it was when its actions were replayed; "
                f"use `env.engine: envpool`, or start anew"
            )


def check_state(state: State, count: int, pixel_count: int, env_id: str) -> None:
    """Raises ValueError for a state that is not one of `count` environments with `pixel_count` bytes of images each."""
    names = {"episodes", "waiting", "lengths", "actions", "observations"} | ({"images"} if pixel_count else set())
    each = {"episodes", "waiting", "lengths", "observations", "returns", "images"} & set(state)
    if (
        set(state) - {"returns"} != names  # earlier versions wrote no returns
        or any(state[name].shape[:1] != (count,) for name in each)
        or state["lengths"].sum() != len(state["actions"])
    ):
        raise ValueError(
            f"env.id is {env_id!r}: the checkpoint does not hold the state of {count} environments of this engine"
        )

"""Log from which the environments of a shard can be replayed."""

import hashlib
import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.engine import State
from lockstep.envs.episodes import EpisodeLog

__all__ = ["History", "check_state", "current_observations", "episode_logs", "restore_history"]

_BLOCK = 1024
"""Number of steps in a block of the log."""
_LONG = 100_000
"""Length of an episode, in steps, from which a warning is logged. The longest known have 27,000 (whole Atari games)."""


class History:
    """The log from which B environments are replayed: episode, actions and sum of rewards of each.

    Actions are stored in blocks of steps, back to the start of the oldest running episode. All actions of an episode
    that never ends are kept: each step of an environment adds the bytes of its action, in memory and in every
    checkpoint.
    """

    def __init__(self, count: int) -> None:
        self._steps = 0
        self._first = 0
        """Number of the step whose actions are first in `blocks[0]`."""
        self.blocks: list[NDArray[Any]] = []
        """Blocks of actions, each `[1024, B, …]`."""
        self.episodes = np.zeros(count, dtype=np.int64)
        """Numbers of the running episodes."""
        self.starts = np.zeros(count, dtype=np.int64)
        """Number of the step that took the first action of the running episode."""
        self.returns = np.zeros(count)
        """Sums of the rewards of the running episodes, added in the order of the steps."""
        self.waiting: NDArray[np.intp] = np.zeros(0, dtype=np.intp)
        """Indices of the environments whose next step is their reset."""
        self.lost = np.zeros(count, dtype=np.bool_)
        """True for an environment that failed, so that its next step is a reset without an episode before it."""
        self._warned = False

    def record(self, actions: NDArray[Any]) -> None:
        """Copy the actions of the next step, before that step: environments may change their actions in place."""
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
            self.lost[self.waiting] = False
        self.returns += rewards
        self.waiting = (terminated | truncated).nonzero()[0]

    def drop(self, indices: Sequence[int]) -> None:
        """Drop the running episodes of environments that have failed: their next step is a reset."""
        if not len(indices):
            return
        self.waiting = np.union1d(self.waiting, np.array(indices, dtype=np.intp))
        self.starts[indices] = self._steps
        self.returns[indices] = 0.0
        self.lost[indices] = True

    def state(self, observations: NDArray[Any], pixels: NDArray[np.uint8]) -> State:
        """Return the log and the current observations as plain arrays, and digests in place of images.

        `actions` concatenates the actions of environment 0, environment 1, and so on; `lengths` has the number of
        actions of each environment. `lost` is only there if an environment has failed in the last step.
        """
        waiting = np.zeros(len(self.starts), dtype=np.bool_)
        waiting[self.waiting] = True
        actions = [part for index in range(len(self.starts)) for part in self._actions(index)]
        return {
            "episodes": self.episodes.copy(),
            "waiting": waiting,
            "lengths": self._steps - self.starts,
            "returns": self.returns.copy(),
            "actions": np.concatenate(actions or [np.zeros(0, np.float32)]),
            **({"lost": self.lost.copy()} if self.lost.any() else {}),
            **current_observations(observations, pixels),
        }

    def _actions(self, index: int) -> list[NDArray[Any]]:
        start, first = int(self.starts[index]), self._first
        numbered = ((first + position * _BLOCK, block) for position, block in enumerate(self.blocks))
        return [block[max(start - number, 0) : self._steps - number, index] for number, block in numbered]

    def warn_if_long(self, first: int, env_id: str) -> None:
        """Log a warning if an episode is so long that its log slows down checkpoints and resume.

        Only the first shard (`first` is 0) warns, and only once.
        """
        steps = self._steps - int(self.starts.min())
        if first or self._warned or steps < _LONG:
            return
        self._warned = True
        logging.getLogger("lockstep.envs").warning(
            f"env.id is {env_id!r}: environment {self.starts.argmin()} has taken {steps:,} steps in one episode: every checkpoint stores "
            "their actions, and resume repeats all of them; limit the length of episodes in a new run, with max_episode_steps in "
            "env.options or with Gymnasium's TimeLimit"
        )

    @classmethod
    def from_state(cls, state: State, returns: NDArray[Any]) -> "History":
        """Recreate a history from its `state` and the `returns` of the replay: earlier versions did not save them."""
        history = cls(len(state["episodes"]))
        lengths, actions = state["lengths"], state["actions"]
        history.episodes = state["episodes"].copy()
        history.waiting = np.flatnonzero(state["waiting"])
        history.lost = state.get("lost", history.lost).copy()
        history.returns = returns.copy()
        steps = int(lengths.max())
        history.starts = steps - lengths
        rows = np.zeros((steps, len(lengths), *actions.shape[1:]), dtype=actions.dtype)
        for index, log in enumerate(episode_logs(state)):
            rows[history.starts[index] :, index] = log.actions
        for row in rows:
            history.record(row)
        return history


def episode_logs(state: State) -> list[EpisodeLog]:
    """Return the running episode of each environment."""
    ends = np.cumsum(state["lengths"]).tolist()
    starts = [0, *ends[:-1]]
    episodes, lost = state["episodes"].tolist(), state.get("lost", np.zeros(len(ends), dtype=np.bool_)).tolist()
    return [
        EpisodeLog(episode, state["actions"][start:end], is_lost)
        for episode, start, end, is_lost in zip(episodes, starts, ends, lost, strict=True)
    ]


def current_observations(observations: NDArray[Any], pixels: NDArray[np.uint8]) -> State:
    """Return the part of a state that a replay must reproduce: the observations, and the digests of their images."""
    if not pixels.shape[1]:
        return {"observations": observations.copy()}
    digests = [list(hashlib.blake2b(row.tobytes(), digest_size=16).digest()) for row in pixels]
    return {"observations": observations.copy(), "images": np.array(digests, dtype=np.uint8)}


def restore_history(state: State, replayed: State, first: int, env_id: str) -> History:
    """Return the history of a saved state. `first` is the number of the shard's first environment.

    Raises ValueError for the first environment whose replay differs from the saved state in any bit.
    """
    pairs = {name: (saved, replayed[name]) for name, saved in state.items() if name in replayed}
    for index in range(len(state["episodes"])):
        differing = [
            name
            for name, (saved, repeated) in pairs.items()
            if saved.dtype != repeated.dtype or saved[index].tobytes() != repeated[index].tobytes()
        ]
        if differing == ["returns"]:
            raise ValueError(
                f"env.id is {env_id!r}: environment {first + index} returned different rewards when its actions were replayed: its "
                "rewards depend on more than the seed and the actions of the episode, for example through NormalizeReward or another "
                "wrapper with state across episodes; remove the wrapper and set ppo.normalize_rewards in a new run"
            )
        if differing:
            raise ValueError(
                f"env.id is {env_id!r}: environment {first + index} reached a different state when its actions were replayed; "
                "start a new run, with `env.engine: envpool` if envpool has the environment: it needs no replay"
            )
    return History.from_state(state, replayed["returns"])


def check_state(state: State, count: int, pixel_count: int, env_id: str) -> None:
    """Raise ValueError if `state` is not that of `count` environments with `pixel_count` bytes of images each."""
    required = {"episodes", "waiting", "lengths", "actions", "observations"} | ({"images"} if pixel_count else set())
    per_environment = {"episodes", "waiting", "lengths", "observations", "returns", "images", "lost"} & set(state)
    if (
        set(state) - {"returns", "lost"} != required  # checkpoints of earlier versions have no returns
        or any(state[name].shape[:1] != (count,) for name in per_environment)
        or state["lengths"].sum() != len(state["actions"])
    ):
        raise ValueError(
            f"env.id is {env_id!r}: the checkpoint does not hold the state of {count} environments of this engine"
        )

"""Protocol of engines: an engine steps the B environments of one shard."""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.spaces import Spaces

__all__ = ["Engine", "EnvironmentFailed", "EnvironmentLost", "State", "Step"]


class EnvironmentFailed(RuntimeError):
    """An environment raised an error or violated its contract. The message names the environment."""


class EnvironmentLost(EnvironmentFailed):
    """The process of an environment has ended or does not answer. Unlike after an error, creating the environments again may succeed."""


Step = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]
"""Observations `[B, O]` float, rewards `[B]` float, terminated `[B]` bool, truncated `[B]` bool."""

State = dict[str, NDArray[Any]]
"""Saved state of an engine: arrays of plain numbers, by name."""


class Engine(Protocol):
    """B environments of one shard, with next-step autoreset.

    This convention is the same for all engines; rollout.py has a table of it. The observation that comes with
    `terminated | truncated` is the last one of its episode. The next step ignores the action and returns the first
    observation of the next episode, reward 0 and both flags False.

    The next step may overwrite arrays that an engine returned: the caller copies them at once.
    """

    @property
    def spaces(self) -> Spaces:
        """Sizes of observations and actions."""

    @property
    def restarts_episodes(self) -> bool:
        """True if the engine can't be restored: `restart_episodes` is then called at every multiple of `run.checkpoint_every`."""

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """Images `[B, P]` of the current observations; the next step may overwrite them."""

    @property
    def infos(self) -> NDArray[np.float64]:
        """Numbers `[B, K]` of `env.info_metrics` from the last step, NaN where no episode ended."""

    @property
    def absent(self) -> NDArray[np.bool_]:
        """Flags `[B]`: True if the environment is an agent that is not in its game, so that its row is a reset row."""

    @property
    def lost(self) -> Sequence[int]:
        """Indices of the environments that failed in the last `reset`, `step` or `restore`, and are created anew in the next step.

        A step returns zeros and `terminated` for them. The next one is their reset, or fails again. Always empty unless `env.on_fault` is `replace`.
        """

    def reset(self) -> NDArray[Any]:
        """Begin the first episodes and return the observations `[B, O]`.

        It is called once, or not at all if the engine starts with `restore` or `restart_episodes`.
        """

    def step(self, actions: NDArray[Any]) -> Step:
        """Take a step in every environment. Raises EnvironmentFailed, naming the environment, if one of them fails.

        `actions` are `[B]` int64 or `[B, A]` float within the bounds; the caller may overwrite the array afterwards.
        """

    def state(self) -> State:
        """Return everything that `restore` needs to continue exactly from here; empty for an engine with `restarts_episodes`."""

    def restore(self, state: State) -> NDArray[Any]:
        """Restore the environments from `state`, and return the observations `[B, O]`.

        Raises ValueError if `state` does not fit this engine, or if the restored environments differ from it in a bit.
        """

    def restart_episodes(self, iteration: int) -> NDArray[Any]:
        """Begin new episodes, seeded by `iteration`, and return the observations `[B, O]`. For engines with `restarts_episodes`."""

    def close(self) -> None:
        """Free the resources of the environments. May be called twice."""

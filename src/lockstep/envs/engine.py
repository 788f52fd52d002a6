"""The contract of engines: what steps the B environments of one shard."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.spaces import Spaces

__all__ = ["Engine", "EnvironmentFailed", "State", "Step"]


class EnvironmentFailed(RuntimeError):
    """An environment raised an error, ended its process, or did not answer. The message names it."""


Step = tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]
"""Observations `[B, O]` float, rewards `[B]` float, terminated `[B]` bool, truncated `[B]` bool."""

State = dict[str, NDArray[Any]]
"""Arrays by name, of plain numbers."""


class Engine(Protocol):
    """B environments of one shard under one convention for episode ends (next-step autoreset, drawn in rollout.py).

    The observation that comes with `terminated | truncated` is the last one of its episode. The step after it ignores its
    action and gives the first observation of the next episode, reward 0 and no flags.

    Arrays that an engine returns may be overwritten by its next step: the caller copies them at once.
    """

    @property
    def spaces(self) -> Spaces:
        """Sizes of observations and actions."""

    @property
    def renews(self) -> bool:
        """True: the engine can't be restored, so `renew` is called at every iteration that leaves a checkpoint."""

    @property
    def pixels(self) -> NDArray[np.uint8]:
        """`[B, P]`: the images of the current observations; the next step may overwrite them."""

    def reset(self) -> NDArray[Any]:
        """Begins every environment's first episode: observations `[B, O]`. Called once, unless `restore` or `renew` is."""

    def step(self, actions: NDArray[Any]) -> Step:
        """Takes `[B]` int64 or `[B, A]` float actions that lie within the bounds; the array may be overwritten after.

        Raises RuntimeError, naming the environment, when one of them fails.
        """

    def state(self) -> State:
        """All that `restore` needs to go on exactly from here; empty where the engine `renews`."""

    def restore(self, state: State) -> NDArray[Any]:
        """Goes back to where `state` was taken and returns the current observations `[B, O]`.

        Raises ValueError, naming the environment, when its current observation does not come out bit for bit.
        """

    def renew(self, iteration: int) -> NDArray[Any]:
        """Begins new episodes in all environments, seeded by `iteration`: observations `[B, O]`. Only where `renews`."""

    def close(self) -> None:
        """Frees what the environments hold. May be called twice."""

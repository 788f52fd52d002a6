"""Families: presets for many environments, which leave the environment to the user."""

from typing import NamedTuple

__all__ = ["FAMILIES", "Family"]


class Family(NamedTuple):
    """Environments for which a preset is made."""

    example: str
    """An environment of the family."""
    about: str
    """The environments, for `lockstep presets`."""
    images: bool | None = False
    """True if observations must have images, False if they must have none, None for both."""
    continuous: bool = False
    """True if actions must have continuous components."""

    def fits(self, images: bool, continuous: bool) -> bool:
        """Return True if an environment with or without images and continuous actions is one of the family."""
        return self.images in (None, images) and (continuous or not self.continuous)


FAMILIES = {
    "mujoco": Family("Hopper-v5", "continuous control", continuous=True),
    "classic": Family("Acrobot-v1", "vectors, short budgets"),
    "box2d": Family("LunarLander-v3", "vectors, long episodes"),
    "atari": Family("ALE/Pong-v5", "images", images=True),
    "memory": Family("cartpole-no-velocity", "hidden state", images=None),
    "sparse": Family("MountainCar-v0", "rare rewards", images=None),
}
"""All families by the name of their preset. The first one that fits is suggested for an environment."""

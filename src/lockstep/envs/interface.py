"""What an engine has to know of an environment before it makes any: sizes, and how observations and actions are read."""

from dataclasses import dataclass
from typing import Any

from gymnasium import Space

from lockstep.envs.layout import Layout, Unkept
from lockstep.envs.single import Recipe
from lockstep.envs.spaces import MASK, Spaces, describe

__all__ = ["Interface", "told"]


@dataclass(frozen=True)
class Interface:
    """Of one environment."""

    spaces: Spaces
    layout: Layout
    action_space: Space[Any]

    @classmethod
    def of(cls, recipe: Recipe) -> "Interface":
        """Makes an environment and, if there is something to choose, resets it once to see whether a mask comes with it.

        Raises ValueError in one line for what can't be made, is not supported, or can't be reset.
        """
        if recipe.game is not None and recipe.game.episodic_life:
            raise ValueError("env.options has 'episodic_life', which engine 'gymnasium' does not have; use 'envpool'")
        env = recipe()
        try:
            seen, acted = env.observation_space, env.action_space
            spaces = describe(seen, acted, recipe.env_id, frames_per_step=recipe.frames_per_step)
            if spaces.choices and not spaces.mask_size:
                try:
                    _, info = env.reset(seed=0)
                except Exception as error:
                    raise ValueError(
                        f"env.id is {recipe.env_id!r}: its reset failed: {type(error).__name__}: {error}"
                    ) from error
                if MASK in info:
                    spaces = describe(seen, acted, recipe.env_id, info, recipe.frames_per_step)
            return cls(spaces, Layout(seen, spaces), acted)
        finally:
            env.close()


def told(kind: type[BaseException], error: object) -> str:
    """What went wrong in an environment, in words that go behind its name."""
    return str(error) if issubclass(kind, Unkept) else f"failed: {kind.__name__}: {error}"

"""What an engine has to know of an environment before it makes any: sizes, and how observations and actions are read."""

import traceback
from dataclasses import dataclass
from typing import Any

from gymnasium import Env, Space

from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.layout import ContractViolation, ObservationLayout
from lockstep.envs.single import Recipe
from lockstep.envs.spaces import MASK, Spaces, describe

__all__ = ["Interface", "exited", "reset_values", "told"]


@dataclass(frozen=True)
class Interface:
    """Of one environment."""

    spaces: Spaces
    layout: ObservationLayout
    action_space: Space[Any]

    @classmethod
    def of(cls, recipe: Recipe) -> "Interface":
        """Makes an environment and, if there is something to choose, resets it once to see whether a mask comes with it.

        Raises ValueError in one line if it can't be created, is not supported, or can't be reset; EnvironmentFailed if it calls
        `sys.exit`.
        """
        if recipe.game is not None and recipe.game.episodic_life:
            raise ValueError("env.options has 'episodic_life', which engine 'gymnasium' does not have; use 'envpool'")
        env = recipe()
        try:
            seen, acted = _space(env, "observation_space", recipe), _space(env, "action_space", recipe)
            spaces = describe(seen, acted, recipe.env_id, frames_per_step=recipe.frames_per_step)
            if spaces.choices and not spaces.mask_size:
                try:
                    _, info = reset_values(env.reset(seed=0))
                except (Exception, SystemExit) as error:
                    kind = EnvironmentFailed if isinstance(error, SystemExit) else ValueError
                    problem = kind(f"env.id is {recipe.env_id!r}: its reset {told(type(error), error)}")
                    problem.add_note("".join(traceback.format_exception(error)))  # main prints it before the line
                    raise problem from error
                if MASK in info:
                    spaces = describe(seen, acted, recipe.env_id, info, recipe.frames_per_step)
            return cls(spaces, ObservationLayout(seen, spaces), acted)
        finally:
            env.close()


def told(kind: type[BaseException], error: object) -> str:
    """What went wrong in an environment, in words that go behind its name."""
    if issubclass(kind, SystemExit):
        return exited(error)
    return str(error) if issubclass(kind, ContractViolation) else f"failed: {kind.__name__}: {error}"


def exited(error: object) -> str:
    """Describe a SystemExit that an environment raised, to follow the environment's name."""
    return f"called sys.exit({error})"


def reset_values(answer: Any) -> tuple[Any, dict[str, Any]]:
    """Return the observation and info of a `reset`. Raises Unkept for anything else, such as the observation alone."""
    if isinstance(answer, tuple) and len(answer) == 2 and isinstance(answer[1], dict):
        return answer
    raise ContractViolation(
        f"returned {type(answer).__name__} from reset: Gymnasium's API returns (observation, info); an environment of the old "
        "Gym API must be converted, for example with shimmy"
    )


def _space(env: Env[Any, Any], name: str, recipe: Recipe) -> Space[Any]:
    """Return `observation_space` or `action_space`. Raises ValueError if the environment does not define it."""
    space = getattr(env, name, None)
    if not isinstance(space, Space):
        came = "is missing" if space is None else f"is {type(space).__name__}"
        raise ValueError(
            f"env.id is {recipe.env_id!r}: its attribute {name} {came}; it must be a gymnasium.spaces.Space"
        )
    return space

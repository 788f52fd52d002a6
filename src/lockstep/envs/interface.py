"""Description of an environment that an engine needs before it creates its environments."""

import traceback
from dataclasses import dataclass
from typing import Any

from gymnasium import Env, Space

from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.layout import ContractViolation, ObservationLayout
from lockstep.envs.spaces import MASK, Spaces, describe

__all__ = ["Interface", "exit_text", "failure_text", "split_reset"]


@dataclass(frozen=True)
class Interface:
    """Spaces, observation layout and action space of one environment."""

    spaces: Spaces
    layout: ObservationLayout
    action_space: Space[Any]

    @classmethod
    def from_factory(cls, factory: EnvFactory) -> "Interface":
        """Create an environment and read its spaces.

        If actions have choices, reset the environment once to see whether `info` holds a mask. Raises ValueError in one
        line if the environment can't be created, is not supported, or can't be reset; EnvironmentFailed if the
        environment calls `sys.exit`.
        """
        if factory.game is not None and factory.game.episodic_life:
            raise ValueError("env.options has 'episodic_life', which engine 'gymnasium' does not have; use 'envpool'")
        env = factory()
        try:
            observation_space = _space(env, "observation_space", factory)
            action_space = _space(env, "action_space", factory)
            spaces = describe(observation_space, action_space, factory.env_id, frames_per_step=factory.frames_per_step)
            if spaces.choices and not spaces.mask_size:
                try:
                    _, info = split_reset(env.reset(seed=0))
                except (Exception, SystemExit) as error:
                    kind = EnvironmentFailed if isinstance(error, SystemExit) else ValueError
                    problem = kind(f"env.id is {factory.env_id!r}: its reset {failure_text(type(error), error)}")
                    # the command line prints the notes before the message
                    problem.add_note("".join(traceback.format_exception(error)))
                    raise problem from error
                if MASK in info:
                    spaces = describe(observation_space, action_space, factory.env_id, info, factory.frames_per_step)
            return cls(spaces, ObservationLayout(observation_space, spaces), action_space)
        finally:
            env.close()


def failure_text(kind: type[BaseException], error: object) -> str:
    """Describe an exception that an environment raised, in a phrase that follows the environment's name."""
    if issubclass(kind, SystemExit):
        return exit_text(error)
    return str(error) if issubclass(kind, ContractViolation) else f"failed: {kind.__name__}: {error}"


def exit_text(error: object) -> str:
    """Describe a SystemExit that an environment raised, in a phrase that follows the environment's name."""
    return f"called sys.exit({error})"


def split_reset(result: Any) -> tuple[Any, dict[str, Any]]:
    """Return observation and info of the result of a `reset`. Raises ContractViolation for any other result."""
    if isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], dict):
        return result
    raise ContractViolation(
        f"returned {type(result).__name__} from reset: Gymnasium's API returns (observation, info); an environment of the old "
        "Gym API must be converted, for example with shimmy"
    )


def _space(env: Env[Any, Any], name: str, factory: EnvFactory) -> Space[Any]:
    """Return `observation_space` or `action_space`. Raises ValueError if the environment does not define it."""
    space = getattr(env, name, None)
    if not isinstance(space, Space):
        actual = "is missing" if space is None else f"is {type(space).__name__}"
        raise ValueError(
            f"env.id is {factory.env_id!r}: its attribute {name} {actual}; it must be a gymnasium.spaces.Space"
        )
    return space

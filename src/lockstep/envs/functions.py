"""Environments that a program gives as functions: known to its own processes, and to nobody else."""

import sys
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any
from weakref import WeakSet

import gymnasium as gym

from lockstep.envs.modules import import_environments

__all__ = ["Make", "check_given", "give", "given", "is_function", "make_given", "reference", "take"]

Make = Callable[..., gym.Env[Any, Any]]
"""Makes a new environment each time; keyword arguments are `env.options`."""

_GIVEN: dict[str, Make] = {}
_MADE: WeakSet[gym.Env[Any, Any]] = WeakSet()


def give(make: Make, env_id: str | None = None) -> str:
    """Makes a function known to this process, under the id that is given back: `env_id`, or one such as `my_envs.make_env()`.

    Raises ValueError for what is no function.
    """
    if isinstance(make, gym.Env):
        raise ValueError(
            f"env is a {type(make).__name__}: several are needed; give the class, or a function that makes a new one each time"
        )
    if not callable(make):
        raise ValueError(f"env is {make!r}: it must be an id, a function that makes an environment, or settings")
    if env_id is None:
        found = reference(make)
        name = found.replace(":", ".") if found else getattr(make, "__name__", type(make).__name__)
        env_id = f"{name}()"
    _GIVEN[env_id] = make
    return env_id


def given(env_id: str) -> Make | None:
    """The function that this process knows under an id."""
    return _GIVEN.get(env_id)


def reference(make: Make) -> str | None:
    """`module:function`, by which another process finds it too; None: it can't."""
    module, name = getattr(make, "__module__", None), getattr(make, "__qualname__", None)
    if not module or not name or module == "__main__":
        return None
    try:
        return f"{module}:{name}" if _find(module, name) is make else None
    except (AttributeError, KeyError):
        return None


def take(word: str) -> None:
    """Imports what a `reference` leads to and gives it to this process; a module alone is only imported.

    Only ever to be called with what a program or a user named. Raises ValueError if it can't be imported.
    """
    module, _, name = word.partition(":")
    import_environments(module)
    if name:
        give(_find(module, name))


def _find(module: str, name: str) -> Any:
    return reduce(getattr, name.split("."), sys.modules[module])


def is_function(env_id: str) -> bool:
    """Whether it is the id of a function, of this process or of another program's."""
    return env_id.endswith("()")


def check_given(env_id: str) -> None:
    """Raises ValueError for a function that this process was not given."""
    if env_id not in _GIVEN:
        raise ValueError(
            f"env.id is {env_id!r}: it is a function of a program, which alone can go on with it; there, give it as `env` to "
            "lockstep.resume, load or evaluate"
        )


def make_given(env_id: str, options: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """A new environment. Raises ValueError, in words to go behind its name, for what is none."""
    env: Any = _GIVEN[env_id](**options)
    if not isinstance(env, gym.Env):
        raise ValueError(f"it gave {type(env).__name__!r}, which is no gymnasium.Env")
    missing = [name for name in ("reset", "step") if getattr(type(env), name) is getattr(gym.Env, name)]
    missing += [
        name for name in ("observation_space", "action_space") if not isinstance(getattr(env, name, None), gym.Space)
    ]
    if missing:
        raise ValueError(f"it gave a {type(env).__name__}, which has no {missing[0]}")
    if env in _MADE:
        raise ValueError("it gave the same environment twice: it must make a new one each time")
    _MADE.add(env)
    return env

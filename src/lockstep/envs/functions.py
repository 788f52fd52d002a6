"""Environments that a program passes as functions: known only to the processes in which they are registered."""

import inspect
import sys
from collections.abc import Callable, Mapping
from functools import reduce
from typing import Any
from weakref import WeakSet

import gymnasium as gym

from lockstep.envs.modules import import_environments

__all__ = [
    "Make",
    "attribute",
    "check_registered",
    "import_reference",
    "is_function",
    "is_vector_function",
    "make_registered",
    "make_registered_vector",
    "reference",
    "register_function",
    "registered_function",
    "returns_parallel",
]

Make = Callable[..., gym.Env[Any, Any] | gym.vector.VectorEnv[Any, Any, Any]]
"""Function that creates a new environment at each call; its keyword arguments are `env.options`. One with a parameter `num_envs` creates a
vector environment of that many environments, as a `vector_entry_point` of Gymnasium does."""

_FUNCTIONS: dict[str, Make] = {}
"""Registered functions by id."""
_CREATED: WeakSet[Any] = WeakSet()
"""Environments that the functions have returned so far."""


def register_function(make: Make, env_id: str | None = None) -> str:
    """Register a function that creates environments in this process, and return its id.

    The id is `env_id`, or one made of the function's name, such as `my_envs.make_env()`. Raises ValueError if `make` is
    not a function.
    """
    if isinstance(make, (gym.Env, gym.vector.VectorEnv)):
        raise ValueError(
            f"env is an instance of {type(make).__name__}: training needs several environments; give the class, or a function "
            "that creates a new one at each call"
        )
    if not callable(make):
        raise ValueError(f"env is {make!r}: it must be an id, a function that makes an environment, or settings")
    if env_id is None:
        path = reference(make)
        name = path.replace(":", ".") if path else getattr(make, "__name__", type(make).__name__)
        env_id = f"{name}()"
    _FUNCTIONS[env_id] = make
    return env_id


def registered_function(env_id: str) -> Make | None:
    """Return the function that is registered under an id in this process, or None."""
    return _FUNCTIONS.get(env_id)


def reference(make: Callable[..., Any]) -> str | None:
    """Return `module:function`, by which another process can import the function, or None if it can't."""
    module, name = getattr(make, "__module__", None), getattr(make, "__qualname__", None)
    if not module or not name or module == "__main__":
        return None
    try:
        return f"{module}:{name}" if attribute(module, name) is make else None
    except (AttributeError, KeyError):
        return None


def import_reference(text: str) -> None:
    """Import the module of a `reference` and register its function in this process.

    If `text` names no function, only import the module. Importing runs code: call this only with text that came from a
    program or a user. Raises ValueError if the module can't be imported.
    """
    module, _, name = text.partition(":")
    import_environments(module)
    if name:
        register_function(attribute(module, name))


def attribute(module: str, name: str) -> Any:
    """Return the attribute of an imported module; `name` may have dots. Raises AttributeError if there is none."""
    return reduce(getattr, name.split("."), sys.modules[module])


def is_function(env_id: str) -> bool:
    """Return True for the id of a function, registered in this process or not."""
    return env_id.endswith("()")


def check_registered(env_id: str) -> None:
    """Check that a function is registered in this process. Raises ValueError if it is not."""
    if env_id not in _FUNCTIONS:
        raise ValueError(
            f"env.id is {env_id!r}: only the program that defines this function can create the environment; pass the function there "
            "as `env` to lockstep.resume, load or evaluate"
        )


def returns_parallel(env_id: str, options: Mapping[str, Any]) -> bool:
    """Return True if an id is that of a registered function that creates a parallel environment of PettingZoo."""
    if env_id not in _FUNCTIONS or is_vector_function(env_id):
        return False
    try:
        env = _FUNCTIONS[env_id](**options)
    except Exception:  # reported where the environment is used
        return False
    parallel = _is_parallel(env)
    if parallel:
        env.close()
    return parallel


def _is_parallel(env: Any) -> bool:
    return hasattr(env, "possible_agents")


def make_registered(env_id: str, options: Mapping[str, Any]) -> gym.Env[Any, Any]:
    """Create an environment with a registered function.

    Raises ValueError if the function returns another object, or the same environment twice. The caller puts the name of
    the function before the message.
    """
    env: Any = _FUNCTIONS[env_id](**options)
    if isinstance(env, gym.vector.VectorEnv):
        raise ValueError(
            f"the function returned a {type(env).__name__}, a vector environment: it must take the number of environments as num_envs"
        )
    if _is_parallel(env):
        raise ValueError(
            f"the function returned {type(env).__name__!r}, which has several agents: set env.engine to 'pettingzoo'"
        )
    if not isinstance(env, gym.Env):
        raise ValueError(f"the function returned {type(env).__name__!r}, which is not a gymnasium.Env")
    missing = [name for name in ("reset", "step") if getattr(type(env), name) is getattr(gym.Env, name)]
    missing += [
        name for name in ("observation_space", "action_space") if not isinstance(getattr(env, name, None), gym.Space)
    ]
    if missing:
        raise ValueError(f"the function returned a {type(env).__name__}, which has no {missing[0]}")
    check_new(env)
    return env


def is_vector_function(env_id: str) -> bool:
    """Return True for the id of a registered function, or of a class, that takes `num_envs`: it creates vector environments."""
    make = _FUNCTIONS.get(env_id)
    if make is None:
        return False
    if isinstance(make, type) and issubclass(make, gym.vector.VectorEnv):
        return True
    try:
        return "num_envs" in inspect.signature(make).parameters
    except ValueError:
        return False


def make_registered_vector(env_id: str, count: int, options: Mapping[str, Any]) -> gym.vector.VectorEnv[Any, Any, Any]:
    """Create a vector environment with a registered function. Raises ValueError as `make_registered` does."""
    env: Any = _FUNCTIONS[env_id](num_envs=count, **options)
    if not isinstance(env, gym.vector.VectorEnv):
        raise ValueError(
            f"the function takes num_envs, but returned {type(env).__name__!r}, which is not a gymnasium.vector.VectorEnv"
        )
    check_new(env)
    return env


def check_new(env: Any) -> None:
    """Raise ValueError if an environment was returned before."""
    if env in _CREATED:
        raise ValueError("the function returned the same environment twice: it must create a new one at each call")
    _CREATED.add(env)

"""PettingZoo's parallel environments: their ids, their creation, and the spaces that all agents share."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules
from typing import Any

import gymnasium as gym

from lockstep.envs.functions import check_new, registered_function

__all__ = ["check_parallel_id", "common_space", "is_parallel", "is_parallel_id", "make_parallel"]

_PACKAGES = ("pettingzoo", "mpe2")
"""Packages with environments: those of MPE have moved from PettingZoo to mpe2."""


def is_parallel_id(env_id: str) -> bool:
    """Return True for `pettingzoo/FAMILY/NAME_vN` and `mpe2/NAME_vN`."""
    return env_id.startswith(tuple(f"{package}/" for package in _PACKAGES))


def check_parallel_id(env_id: str) -> None:
    """Raise ValueError if the id is malformed or unknown, or if its package is not installed."""
    package = env_id.partition("/")[0]
    if not re.fullmatch(r"pettingzoo/[a-z]+/\w+_v\d+|mpe2/\w+_v\d+", env_id):
        raise ValueError(
            f"env.id is {env_id!r}: an id of PettingZoo is pettingzoo/FAMILY/NAME_vN, such as pettingzoo/butterfly/pistonball_v6, or "
            "mpe2/NAME_vN, such as mpe2/simple_spread_v3"
        )
    if find_spec("pettingzoo") is None or find_spec(package) is None:
        raise ValueError(f"env.id is {env_id!r}: {package} is not installed; pip install 'lockstep-rl[pettingzoo]'")
    folder, name = env_id.replace("/", ".").rsplit(".", 1)
    spec = None if find_spec(folder) is None else find_spec(f"{folder}.{name}")
    if spec is None:
        places = [] if find_spec(folder) is None else import_module(folder).__path__
        names = [module.name for module in iter_modules(places) if re.search(r"_v\d+$", module.name)]
        matches = get_close_matches(name, names, n=1)
        hint = f"did you mean {env_id.rpartition('/')[0]}/{matches[0]}?" if matches else f"{package} does not have it"
        raise ValueError(f"env.id is {env_id!r}: there is no such environment; {hint}")


def make_parallel(env_id: str, options: Mapping[str, Any], render_mode: str | None = None) -> Any:
    """Create a parallel environment. Raises ValueError if the id or function makes another object; other errors are the environment's."""
    arguments = {**({} if render_mode is None else {"render_mode": render_mode}), **options}
    if is_parallel_id(env_id):
        env = import_module(env_id.replace("/", ".")).parallel_env(**arguments)
    elif (make := registered_function(env_id)) is not None:
        env = make(**options)
        check_new(env)
    else:
        known = gym.spec(env_id)
        entry: Any = known.entry_point
        create = gym.envs.registration.load_env_creator(entry) if isinstance(entry, str) else entry
        env = None if create is None else create(**{**known.kwargs, **arguments})
    if not all(
        hasattr(env, name) for name in ("possible_agents", "observation_space", "action_space", "reset", "step")
    ):
        raise ValueError(
            f"engine 'pettingzoo' needs a pettingzoo.ParallelEnv with possible_agents, not {type(env).__name__!r}"
        )
    if not callable(env.observation_space) or not env.possible_agents:
        raise ValueError("engine 'pettingzoo' needs a pettingzoo.ParallelEnv with at least one agent")
    return env


def is_parallel(env_id: str, options: Mapping[str, Any]) -> bool:
    """Return True if the id of Gymnasium's registry makes a parallel environment. It creates one."""
    try:
        make_parallel(env_id, options).close()
    except Exception:
        return False
    return True


def common_space(env: Any, name: str, env_id: str) -> gym.Space[Any]:
    """Return the `observation_space` or `action_space` of all agents. Raises ValueError, naming two agents, if they differ."""
    first, *others = env.possible_agents
    space = getattr(env, name)(first)
    for agent in others:
        other = getattr(env, name)(agent)
        if other != space:
            kind = "observations" if name == "observation_space" else "actions"
            raise ValueError(
                f"env.id is {env_id!r}: one policy plays all agents, so their spaces must be equal, but the {kind} of {first} are {space} "
                f"and those of {agent} are {other}"
            )
    if not isinstance(space, gym.Space):
        raise ValueError(
            f"env.id is {env_id!r}: its {name} of {first} is {type(space).__name__}; it must be a Gymnasium space"
        )
    return space

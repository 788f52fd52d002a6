"""Families of environments: their ids, their origin, and the packages that they need."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium as gym

from lockstep.envs.atari import GAMES, is_game
from lockstep.envs.functions import check_registered, is_function, is_vector_function
from lockstep.envs.parallel import check_parallel_id, is_parallel_id
from lockstep.envs.tasks.no_velocity import NO_VELOCITY_TASKS
from lockstep.envs.tasks.pendulum import dense, sparse

__all__ = [
    "ATARI",
    "FAMILIES",
    "SHIPPED",
    "TASKS",
    "Family",
    "base_of",
    "check_id",
    "extra_of",
    "family_of",
    "games",
    "is_vector_only",
    "nearest",
    "version",
]

SHIPPED: dict[str, Callable[..., gym.Env[Any, Any]]] = {"pendulum-dense": dense, "pendulum-sparse": sparse}
"""Functions that create the tasks implemented in lockstep, by `env.id`. Called with the options and `render_mode`."""
TASKS = (*SHIPPED, *NO_VELOCITY_TASKS)
"""Names of all tasks that lockstep ships."""


@dataclass(frozen=True)
class Family:
    """Group of environments that are implemented in the same package."""

    name: str
    entry_prefix: str
    """Prefix of their entry points in Gymnasium's registry."""
    extra: str | None
    """Extra of lockstep that installs the packages they need; None: they need no extra."""
    module: str | None
    """Module that can be imported if the extra is installed; None: they need no extra."""
    envpool_package: str | None = None
    """Package of envpool that has environments of the same ids; None: there is none."""

    @property
    def installed(self) -> bool:
        """True if the packages that the environments need are installed."""
        return self.module is None or find_spec(self.module) is not None


ATARI = Family("Atari", "ale_py", "atari", "ale_py", "atari")
FAMILIES = (
    Family("tasks of lockstep", "lockstep.envs.tasks", None, None),
    Family("classic control", "gymnasium.envs.classic_control", None, None, "classic_control"),
    Family("Box2D", "gymnasium.envs.box2d", "box2d", "Box2D", "box2d"),
    Family("MuJoCo", "gymnasium.envs.mujoco", "mujoco", "mujoco", "mujoco.gym"),
    Family("toy text", "gymnasium.envs.toy_text", None, None, "toy_text"),
    ATARI,
)
_OTHER = Family("other", "", None, None)


def base_of(env_id: str) -> str:
    """Return the id of the environment that a task without velocities is based on; for other ids, the id itself."""
    return NO_VELOCITY_TASKS[env_id].base if env_id in NO_VELOCITY_TASKS else env_id


def family_of(env_id: str) -> Family:
    """Return the family of a known id."""
    if env_id in TASKS:
        return FAMILIES[0]
    entry = getattr(gym.registry.get(env_id), "entry_point", None)
    if not isinstance(entry, str):
        return _OTHER
    return next((family for family in FAMILIES if entry.startswith(family.entry_prefix)), _OTHER)


def extra_of(env_id: str) -> str | None:
    """Return the extra of lockstep that installs the packages of an environment, which need not be installed; None: it needs no extra."""
    if is_parallel_id(env_id):
        return "pettingzoo"
    return (ATARI if is_game(env_id) else family_of(base_of(env_id))).extra


def is_vector_only(env_id: str) -> bool:
    """Return True if an environment has a vector version only: it is registered without `entry_point`, or by a function of `num_envs`."""
    spec = gym.registry.get(env_id)
    return is_vector_function(env_id) or (spec is not None and spec.entry_point is None)


_COMPATIBILITY_WRAPPERS = ("GymV21Environment", "GymV26Environment")
"""Ids of Gymnasium's wrappers for the old Gym API, which create the environment that their options name."""


def check_id(env_id: str) -> None:
    """Raise ValueError for an id that is unknown, would import code, or needs an extra that is not installed."""
    if is_function(env_id):
        check_registered(env_id)
        return
    if is_parallel_id(env_id):
        check_parallel_id(env_id)
        return
    if ":" in env_id:
        raise ValueError(
            f"env.id is {env_id!r}: an id with ':' would import a module and is not accepted; give the id alone"
        )
    if env_id.startswith(_COMPATIBILITY_WRAPPERS):
        raise ValueError(
            f"env.id is {env_id!r}: a wrapper that creates any environment named in its options is not accepted"
        )
    if is_game(env_id) and not _register_games():
        raise ValueError(f"env.id is {env_id!r}: Atari is not installed; pip install 'lockstep-rl[atari]'")
    if env_id not in TASKS and env_id not in gym.registry:
        known = nearest(env_id)
        hint = f"did you mean {known!r}?" if known else "`lockstep envs` lists the known environments"
        if known is None or _unversioned(known) != _unversioned(env_id):
            hint += " For one of your own, pass --env.module" if known else "; for one of your own, pass --env.module"
        raise ValueError(f"env.id is {env_id!r}: there is no such environment; {hint}")
    family = family_of(base_of(env_id))
    if not family.installed:
        raise ValueError(
            f"env.id is {env_id!r}: {family.name} is not installed; pip install 'lockstep-rl[{family.extra}]'"
        )


def games() -> list[str]:
    """Return the ids of all Atari games; none if they are not installed."""
    return sorted(filter(is_game, gym.registry)) if _register_games() else []


def _register_games() -> bool:
    """Register the Atari games with Gymnasium and return True; return False if they are not installed."""
    if find_spec("ale_py") is None:
        return False
    import_module("ale_py")
    return True


def nearest(env_id: str) -> str | None:
    """Return the known id that is most similar to `env_id`, in its newest version; None if none is similar."""
    _register_games()
    newest: dict[str, str] = {name: name for name in TASKS}
    for known in sorted(gym.registry, key=version):
        if is_game(known) or family_of(known) is not ATARI:  # ale-py also registers its games under older ids
            newest[_unversioned(known)] = known
    matches = get_close_matches(_unversioned(env_id), newest, n=1, cutoff=0.6)
    return newest[matches[0]] if matches else None


def version(env_id: str) -> int:
    """Return the version in an id: 7 for `Name-v7`, 0 for an id without a version."""
    match = re.search(r"-v(\d+)$", env_id)
    return int(match[1]) if match else 0


def _unversioned(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id).lower().removeprefix(GAMES.lower())

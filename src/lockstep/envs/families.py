"""Which environments there are: ids, where they come from, what they need installed."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import gymnasium as gym

from lockstep.envs.atari import GAMES, is_game
from lockstep.envs.functions import check_given, is_function
from lockstep.envs.tasks.hidden import HIDDEN
from lockstep.envs.tasks.pendulum import dense, sparse

__all__ = [
    "ATARI",
    "FAMILIES",
    "SHIPPED",
    "TASKS",
    "Family",
    "base_of",
    "check_id",
    "family_of",
    "games",
    "nearest",
    "version",
]

SHIPPED: dict[str, Callable[..., gym.Env[Any, Any]]] = {"pendulum-dense": dense, "pendulum-sparse": sparse}
"""The tasks that lockstep brings whole, by the name that `env.id` takes. Each is called with the options and `render_mode`."""
TASKS = (*SHIPPED, *HIDDEN)
"""The names of all tasks that come with lockstep."""


@dataclass(frozen=True)
class Family:
    """Environments that come from one place."""

    name: str
    entry: str
    """How their entry points begin."""
    extra: str | None
    """The extra of lockstep that installs what they need; None: nothing more is needed."""
    module: str | None
    """What is imported when the extra is installed."""
    in_pool: str | None = None
    """The package in envpool that has environments of the same ids; None: none has."""

    @property
    def installed(self) -> bool:
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
    """The environment that a task is a part of, which engines make; others are their own."""
    return HIDDEN[env_id].base if env_id in HIDDEN else env_id


def family_of(env_id: str) -> Family:
    """Where a known id comes from."""
    if env_id in TASKS:
        return FAMILIES[0]
    entry = getattr(gym.registry.get(env_id), "entry_point", None)
    return next((family for family in FAMILIES if isinstance(entry, str) and entry.startswith(family.entry)), _OTHER)


_FOREIGN = ("GymV21Environment", "GymV26Environment")


def check_id(env_id: str) -> None:
    """Raises ValueError for an id that is unknown, would import code, or needs an extra that is not installed."""
    if is_function(env_id):
        check_given(env_id)
        return
    if ":" in env_id:
        raise ValueError(
            f"env.id is {env_id!r}: an id with ':' would import a module and is not accepted; give the id alone"
        )
    if env_id.startswith(_FOREIGN):
        raise ValueError(f"env.id is {env_id!r}: it makes whatever environment its options name and is not accepted")
    if is_game(env_id) and not _register_games():
        raise ValueError(f"env.id is {env_id!r}: Atari is not installed; pip install 'lockstep-rl[atari]'")
    if env_id not in TASKS and env_id not in gym.registry:
        known = nearest(env_id)
        hint = f"did you mean {known!r}?" if known else "`lockstep envs` lists those that there are"
        raise ValueError(f"env.id is {env_id!r}: there is no such environment; {hint}")
    family = family_of(base_of(env_id))
    if not family.installed:
        raise ValueError(
            f"env.id is {env_id!r}: {family.name} is not installed; pip install 'lockstep-rl[{family.extra}]'"
        )


def games() -> list[str]:
    """The ids of all Atari games; none where they are not installed."""
    return sorted(filter(is_game, gym.registry)) if _register_games() else []


def _register_games() -> bool:
    """Makes Gymnasium know them, if they are installed."""
    if find_spec("ale_py") is None:
        return False
    import_module("ale_py")
    return True


def nearest(env_id: str) -> str | None:
    """The known id that is most like `env_id`, in its newest version."""
    _register_games()
    newest: dict[str, str] = {name: name for name in TASKS}
    for known in sorted(gym.registry, key=version):
        if is_game(known) or family_of(known) is not ATARI:  # those have their games in other ways as well
            newest[_name(known)] = known
    close = get_close_matches(_name(env_id), newest, n=1, cutoff=0.6)
    return newest[close[0]] if close else None


def version(env_id: str) -> int:
    """7 of `Name-v7`; 0 without a version."""
    match = re.search(r"-v(\d+)$", env_id)
    return int(match[1]) if match else 0


def _name(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id).lower().removeprefix(GAMES.lower())

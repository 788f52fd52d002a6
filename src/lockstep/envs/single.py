"""Makes environments, and says in one line why one can't be made."""

import copy
import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import HumanRendering

from lockstep.envs.atari import Game, is_game
from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.envpool_import import registration
from lockstep.envs.families import ATARI, SHIPPED, base_of, check_id, family_of
from lockstep.envs.functions import is_function, make_given
from lockstep.envs.tasks.hidden import HIDDEN, Columns, kept

__all__ = ["Recipe"]

_RESERVED = ("id", "render_mode", "disable_env_checker", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
_RESERVED_BY_POOL = ("seed", "env_seed", "num_threads", "batch_size", "env_type", "thread_affinity_offset")
_CARRY_OVER = ("gymnasium.envs.box2d.bipedal_walker:", "gymnasium.envs.box2d.car_racing:")


@contextmanager
def _silence() -> Iterator[None]:
    """Gymnasium warns, once per environment, of old versions and of rounded bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def _tame_mujoco() -> None:
    """Sends MuJoCo's warnings to `logging`; else it appends them to a file MUJOCO_LOG.TXT in the working folder.

    Not the one that Gymnasium's own model of HalfCheetah causes each time it is read.
    """
    import mujoco

    log = logging.getLogger("lockstep.mujoco")
    mujoco.set_mju_user_warning(lambda text: None if "is deprecated" in text else log.warning(text.strip()))


@dataclass(frozen=True)
class Recipe:
    """An environment's id and its keyword arguments: what every engine makes its environments from.

    All methods raise ValueError, in one line that names `env.id`, `env.options` or `env.engine`, and EnvironmentFailed if the
    environment calls `sys.exit`.
    """

    env_id: str
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)

    def __call__(self, render_mode: str | None = None) -> gym.Env[Any, Any]:
        """One environment. Without `render_mode` it draws nothing: for LunarLander that doubles its speed."""
        check_id(self.env_id)
        if self.columns is not None:
            return Columns(self._base(render_mode), self.columns)
        self._check_options()
        game = self.game
        shipped = SHIPPED.get(self.env_id)
        try:
            if is_function(self.env_id):
                return make_given(self.env_id, self.options)
            if shipped is not None and render_mode == "human":
                return HumanRendering(shipped(render_mode="rgb_array", **self.options))
            if shipped is not None:
                return shipped(render_mode=render_mode, **self.options)
            if game is not None:
                with _silence():
                    return game.one(render_mode)
            spec = copy.copy(gym.spec(self.env_id))
            spec.order_enforce = False  # a wrapper that only checks that reset comes before step
            if family_of(self.env_id).module == "mujoco":
                _tame_mujoco()
            with _silence():
                # who does not draw need not know the word
                drawn = {} if render_mode is None else {"render_mode": render_mode}
                return gym.make(spec, disable_env_checker=True, **drawn, **self.options)  # type: ignore[arg-type]
        except (Exception, SystemExit) as error:
            raise self._problem(error) from error

    @property
    def columns(self) -> tuple[int, ...] | None:
        """The numbers of its base's observations that a task keeps; None: all."""
        return HIDDEN[self.env_id].columns if self.env_id in HIDDEN else None

    @property
    def _base(self) -> "Recipe":
        return Recipe(base_of(self.env_id), self.options)

    def seen(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """What is left of an observation of `vector` or `pool`, which are its base's, once `columns` are taken."""
        return space if self.columns is None else kept(space, self.columns)

    @property
    def frames_per_step(self) -> int:
        """Frames of a game that one step takes."""
        return 1 if self.game is None else self.game.frameskip

    @property
    def game(self) -> Game | None:
        """The Atari game that it is."""
        return Game.of(self.env_id, self.options) if is_game(self.env_id) else None

    @property
    def carries_over(self) -> bool:
        """Whether an episode depends on the ones before it, whatever its seed, so that each needs an environment of its own.

        BipedalWalker and CarRacing keep one Box2D world, whose contacts come in an order that its history leaves.
        """
        entry = getattr(gym.registry.get(base_of(self.env_id)), "entry_point", None)
        return isinstance(entry, str) and entry.startswith(_CARRY_OVER)

    def vector(self, count: int) -> gym.vector.VectorEnv[Any, Any, Any]:
        """Gymnasium's own batched version of the environment."""
        check_id(self.env_id)
        if self.columns is not None:
            return self._base.vector(count)
        self._check_options()
        if self.game is not None:
            raise ValueError(
                f"env.engine is 'gymnasium-vector': {self.env_id} has no batched version of that kind; use 'ale'"
            )
        if self.env_id in SHIPPED or is_function(self.env_id) or gym.spec(self.env_id).vector_entry_point is None:
            raise ValueError(f"env.engine is 'gymnasium-vector': {self.env_id} has no batched version; use 'gymnasium'")
        try:
            with _silence():
                return gym.make_vec(self.env_id, count, vectorization_mode="vector_entry_point", **self.options)  # type: ignore[arg-type]
        except (Exception, SystemExit) as error:
            raise self._problem(error) from error

    def games(self, count: int, threads: int = 1) -> gym.vector.VectorEnv[Any, Any, Any]:
        """As many Atari games, stepped by up to `threads` threads."""
        check_id(self.env_id)
        game = self.game
        if game is None:
            raise ValueError(
                f"env.engine is 'ale': it has Atari games, such as ALE/Pong-v5, not {self.env_id!r}; use 'gymnasium'"
            )
        if game.episodic_life:  # it would begin the whole game anew, and never get to another life
            raise ValueError("env.options has 'episodic_life', which engine 'ale' does not have; use 'envpool'")
        try:
            return game.batch(count, threads)
        except Exception as error:
            raise self._problem(error) from error

    def pool(self, seeds: list[int], threads: int = 1) -> Any:
        """An EnvPool with one environment per seed, stepped by up to `threads` threads."""
        if find_spec("envpool") is None:
            raise ValueError("env.engine is 'envpool': it is not installed; pip install 'lockstep-rl[envpool]'")
        if self.columns is not None:
            check_id(self.env_id)
            return self._base.pool(seeds, threads)
        game = self.game
        name = self.env_id if game is None else game.name_in_pool
        envpool = registration(name, (family_of(self.env_id) if game is None else ATARI).in_pool)
        if name not in envpool.list_all_envs():
            check_id(self.env_id)
            raise ValueError(f"env.engine is 'envpool': it has no environment {self.env_id!r}; use 'gymnasium'")
        self._check_options()
        threads = min(threads, len(seeds))
        own = self.options if game is None else game.in_pool()
        arguments: dict[str, Any] = {"num_envs": len(seeds), "env_seed": seeds, "num_threads": threads, **own}
        try:
            with _silence():
                pool = envpool.make(name, env_type="gymnasium", **arguments)
                pool.observation_space, pool.action_space  # noqa: B018  (first made here, so that they are silent too)
                return pool
        except Exception as error:
            raise self._problem(error) from error

    def _check_options(self) -> None:
        for name in (*_RESERVED, *_RESERVED_BY_POOL):
            if name in self.options:
                raise ValueError(f"env.options has {name!r}, which lockstep sets itself; leave it out")

    def _problem(self, error: BaseException) -> ValueError | EnvironmentFailed:
        if isinstance(error, SystemExit):
            failure = EnvironmentFailed(f"env.id is {self.env_id!r}: it called sys.exit({error}) while it was created")
            failure.add_note("".join(traceback.format_exception(error)))  # main prints it before the line
            return failure
        reason = (
            " ".join(str(error).split()).split(" was raised from the environment creator")[0] or type(error).__name__
        )
        unknown = re.search(r"unexpected keyword argument '(\w+)'", reason)
        if unknown and unknown[1] in self.options:
            return ValueError(f"env.options has {unknown[1]!r}, which {self.env_id} does not take")
        if self.options:
            return ValueError(f"env.options is {dict(self.options)}: {self.env_id} can't be made with it: {reason}")
        return ValueError(f"env.id is {self.env_id!r}: it can't be made: {reason}")

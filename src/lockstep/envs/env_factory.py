"""Creation of environments, with errors of one line."""

import copy
import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import HumanRendering

from lockstep.envs.atari import GAMES, Game, is_game
from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.envpool_import import registration
from lockstep.envs.families import ATARI, SHIPPED, base_of, check_id, family_of, is_vector_only
from lockstep.envs.functions import is_function, is_vector_function, make_registered, make_registered_vector
from lockstep.envs.parallel import is_parallel, is_parallel_id, make_parallel
from lockstep.envs.settings import EnvConfig
from lockstep.envs.tasks.no_velocity import NO_VELOCITY_TASKS, SelectColumns, selected_space
from lockstep.envs.turns import TurnTaking
from lockstep.envs.vector_single import SingleEnvironment
from lockstep.envs.wrapper_calls import parse_wrapper
from lockstep.envs.wrappers import wrap

__all__ = ["EnvFactory"]

_RESERVED = ("id", "render_mode", "disable_env_checker", "num_envs", "vectorization_mode", "vector_kwargs", "wrappers")
_RESERVED_BY_ENVPOOL = ("seed", "env_seed", "num_threads", "batch_size", "env_type", "thread_affinity_offset")
_STATE_ACROSS_EPISODES = ("gymnasium.envs.box2d.bipedal_walker:", "gymnasium.envs.box2d.car_racing:")
"""Prefixes of the entry points of environments whose episodes depend on earlier ones."""


@contextmanager
def _silence() -> Iterator[None]:
    """Ignore warnings: Gymnasium warns of old versions and of rounded bounds once per environment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@cache
def _log_mujoco_warnings() -> None:
    """Send MuJoCo's warnings to `logging` instead of a file MUJOCO_LOG.TXT in the working folder.

    Drop the warning "… is deprecated", which Gymnasium's model of HalfCheetah causes each time it is loaded.
    """
    import mujoco

    log = logging.getLogger("lockstep.mujoco")
    mujoco.set_mju_user_warning(lambda text: None if "is deprecated" in text else log.warning(text.strip()))


@dataclass(frozen=True)
class EnvFactory:
    """Id and keyword arguments of an environment, from which every engine creates its environments.

    The methods that create environments raise ValueError, in one line that names `env.id`, `env.options` or
    `env.engine`, if the environment can't be created, and EnvironmentFailed if it calls `sys.exit`.
    """

    env_id: str
    options: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    wrappers: tuple[str, ...] = ()
    info_metrics: tuple[str, ...] = ()
    module: str | None = None
    """Module of the user, imported already, which may define wrappers."""
    parallel: bool = False
    """True for a parallel environment of PettingZoo."""

    @classmethod
    def from_config(cls, config: EnvConfig) -> "EnvFactory":
        """Return the factory of a config."""
        return cls(
            config.id,
            config.options,
            config.wrappers,
            config.info_metrics,
            config.module,
            config.engine == "pettingzoo" or is_parallel_id(config.id),
        )

    def __call__(self, render_mode: str | None = None) -> gym.Env[Any, Any]:
        """Create one environment. Without `render_mode` it does not render, which doubles the speed of LunarLander."""
        if self.parallel and self.wrappers:
            raise ValueError(
                "env.wrappers is given: wrappers of Gymnasium can't wrap a parallel environment; leave it out"
            )
        env = self._make(render_mode)
        for wrapper in self.wrappers:
            env = wrap(env, parse_wrapper(wrapper), self.module)
        return env

    def _make(self, render_mode: str | None) -> gym.Env[Any, Any]:
        check_id(self.env_id)
        if self.columns is not None:
            return SelectColumns(self._base(render_mode), self.columns)
        if self.parallel:
            return TurnTaking(self.make_parallel(render_mode), self.env_id)
        self._check_options()
        game = self.game
        shipped = SHIPPED.get(self.env_id)
        if is_vector_only(self.env_id):
            return SingleEnvironment(self.make_vector(1, render_mode), self.env_id)
        try:
            if is_function(self.env_id):
                return make_registered(self.env_id, self.options)
            if shipped is not None and render_mode == "human":
                return HumanRendering(shipped(render_mode="rgb_array", **self.options))
            if shipped is not None:
                return shipped(render_mode=render_mode, **self.options)
            if game is not None:
                with _silence():
                    return game.make_single(render_mode)
            spec = copy.copy(gym.spec(self.env_id))
            spec.order_enforce = False  # a wrapper that only checks that reset comes before step
            if family_of(self.env_id).module == "mujoco":
                _log_mujoco_warnings()
            with _silence():
                # environments that do not render need not accept `render_mode`
                rendering = {} if render_mode is None else {"render_mode": render_mode}
                return gym.make(spec, disable_env_checker=True, **rendering, **self.options)  # type: ignore[arg-type]
        except (Exception, SystemExit) as error:
            raise self._problem(error, render_mode) from error

    @property
    def columns(self) -> tuple[int, ...] | None:
        """Columns of the original observations that a task without velocities shows; None for other environments."""
        return NO_VELOCITY_TASKS[self.env_id].columns if self.env_id in NO_VELOCITY_TASKS else None

    @property
    def _base(self) -> "EnvFactory":
        return replace(self, env_id=base_of(self.env_id), wrappers=())

    def select_columns(self, space: gym.Space[Any]) -> gym.Space[Any]:
        """Return the part of an observation space that `columns` select.

        The environments of `make_vector` and `make_envpool` return all columns.
        """
        return space if self.columns is None else selected_space(space, self.columns)

    @property
    def frames_per_step(self) -> int:
        """Frames of an Atari game per step; 1 for other environments."""
        return 1 if self.game is None else self.game.frameskip

    @property
    def game(self) -> Game | None:
        """Atari game with this id and these options; None for other environments."""
        return Game.from_options(self.env_id, self.options) if is_game(self.env_id) else None

    @property
    def keeps_state_across_episodes(self) -> bool:
        """True if an episode depends on earlier ones in spite of its seed, so that each needs a new environment.

        BipedalWalker and CarRacing keep one Box2D world, the order of whose contacts depends on its history.
        """
        entry = getattr(gym.registry.get(base_of(self.env_id)), "entry_point", None)
        return isinstance(entry, str) and entry.startswith(_STATE_ACROSS_EPISODES)

    def make_parallel(self, render_mode: str | None = None) -> Any:
        """Create the parallel environment of PettingZoo."""
        check_id(self.env_id)
        self._check_options()
        try:
            with _silence():
                return make_parallel(self.env_id, self.options, render_mode)
        except (Exception, SystemExit) as error:
            raise self._problem(error, render_mode) from error

    def agents(self) -> list[str]:
        """Return the names of all possible agents of a parallel environment."""
        env = self.make_parallel()
        env.close()
        return [str(agent) for agent in env.possible_agents]

    def make_vector(self, count: int, render_mode: str | None = None) -> gym.vector.VectorEnv[Any, Any, Any]:
        """Create the vector version of the environment, its `vector_entry_point` or a function of it, with `count` environments."""
        check_id(self.env_id)
        if self.columns is not None:
            return self._base.make_vector(count, render_mode)
        self._check_options()
        if self.game is not None:
            raise ValueError(
                f"env.engine is 'gymnasium-vector': Gymnasium has no vector version of {self.env_id}; use 'ale'"
            )
        by_function = is_vector_function(self.env_id)
        if not by_function and (
            self.env_id in SHIPPED or is_function(self.env_id) or gym.spec(self.env_id).vector_entry_point is None
        ):
            raise ValueError(f"env.engine is 'gymnasium-vector': {self.env_id} has no vector version; use 'gymnasium'")
        rendering = {} if render_mode is None else {"render_mode": render_mode}
        try:
            if by_function:
                return make_registered_vector(self.env_id, count, self.options)
            with _silence():
                arguments: dict[str, Any] = {**rendering, **self.options}
                return gym.make_vec(self.env_id, count, vectorization_mode="vector_entry_point", **arguments)
        except (Exception, SystemExit) as error:
            raise self._problem(error, render_mode) from error

    def make_atari_vector(self, count: int, threads: int = 1) -> gym.vector.VectorEnv[Any, Any, Any]:
        """Create `count` Atari games in one vector environment of ale-py that uses up to `threads` threads."""
        check_id(self.env_id)
        game = self.game
        if game is None:
            raise ValueError(
                f"env.engine is 'ale': this engine has only Atari games such as ALE/Pong-v5, not {self.env_id!r}; use 'gymnasium'"
            )
        if game.episodic_life:  # ale-py would restart the game after the first life, and never reach another life
            raise ValueError("env.options has 'episodic_life', which engine 'ale' does not have; use 'envpool'")
        try:
            return game.make_vector(count, threads)
        except Exception as error:
            raise self._problem(error) from error

    def make_envpool(self, seeds: list[int], threads: int = 1) -> Any:
        """Create an EnvPool with one environment per seed that uses up to `threads` threads."""
        if find_spec("envpool") is None:
            raise ValueError("env.engine is 'envpool': envpool is not installed; pip install 'lockstep-rl[envpool]'")
        if self.columns is not None:
            check_id(self.env_id)
            return self._base.make_envpool(seeds, threads)
        game = self.game
        name = self.env_id if game is None else self.env_id.removeprefix(GAMES)
        envpool = registration(name, (family_of(self.env_id) if game is None else ATARI).envpool_package)
        if name not in envpool.list_all_envs():
            check_id(self.env_id)
            raise ValueError(f"env.engine is 'envpool': envpool has no environment {self.env_id!r}; use 'gymnasium'")
        self._check_options()
        threads = min(threads, len(seeds))
        options = self.options if game is None else game.envpool_arguments()
        arguments: dict[str, Any] = {"num_envs": len(seeds), "env_seed": seeds, "num_threads": threads, **options}
        try:
            with _silence():
                pool = envpool.make(name, env_type="gymnasium", **arguments)
                # the first access creates the spaces: here, so that their warnings are ignored too
                pool.observation_space, pool.action_space  # noqa: B018
                return pool
        except Exception as error:
            raise self._problem(error) from error

    def _check_options(self) -> None:
        for name in (*_RESERVED, *_RESERVED_BY_ENVPOOL):
            if name in self.options:
                raise ValueError(f"env.options has {name!r}, which lockstep sets itself; leave it out")

    def _problem(self, error: BaseException, render_mode: str | None = None) -> ValueError | EnvironmentFailed:
        """Return the exception to raise for an error in the creation of the environment."""
        if isinstance(error, SystemExit):
            failure = EnvironmentFailed(
                f"env.id is {self.env_id!r}: the environment called sys.exit({error}) while it was created"
            )
            # the command line prints the notes before the message
            failure.add_note("".join(traceback.format_exception(error)))
            return failure
        reason = (
            " ".join(str(error).split()).split(" was raised from the environment creator")[0] or type(error).__name__
        )
        if "must inherit from the gymnasium.Env class" in reason and is_parallel(self.env_id, self.options):
            return ValueError(
                f"env.id is {self.env_id!r}: the environment has several agents; set env.engine to 'pettingzoo'"
            )
        unknown = re.search(r"unexpected keyword argument '(\w+)'", reason)
        if unknown and unknown[1] in self.options:
            return ValueError(f"env.options has {unknown[1]!r}, which {self.env_id} does not take")
        if render_mode is not None:
            return ValueError(f"{self.env_id} can't be created with render_mode={render_mode!r}: {reason}")
        if self.options:
            return ValueError(
                f"env.options is {dict(self.options)}: {self.env_id} can't be created with these options: {reason}"
            )
        return ValueError(f"env.id is {self.env_id!r}: the environment can't be created: {reason}")

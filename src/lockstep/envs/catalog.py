"""The interface of this package: engines, single environments, and the environments that are known to work."""

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from lockstep.envs.choice import choose_engine
from lockstep.envs.engine import Engine
from lockstep.envs.families import ATARI, FAMILIES, TASKS, base_of, family_of, version
from lockstep.envs.interface import Interface
from lockstep.envs.settings import EnvConfig
from lockstep.envs.single import Recipe
from lockstep.envs.spaces import Spaces, describe
from lockstep.randomness import EnvironmentSeeds

__all__ = [
    "Known",
    "describe_env",
    "first_seed",
    "has_time_limit",
    "known_ids",
    "make_engine",
    "make_one",
    "renewed_episode_limit",
]


_NAMED = {"gymnasium-vector": "vector", "envpool": "envpool", "ale": "ale"}
"""Names of the seeds of engines. Those of single environments have one for all, so that their trajectories are the same."""
_EACH = "episode"


def make_engine(config: EnvConfig, seed: int, shard: int, shards: int, cores: int = 1) -> Engine:
    """The engine of one shard, which holds environments `shard * B` to `shard * B + B - 1` with `B = config.count // shards`.

    `cores` are the rank's, for an engine that can use several; `config.threads` goes first. The bits do not depend on it. `config.engine` must not be `auto` any more. Raises ValueError in one line, as `describe_env` does.
    """
    assert config.count % shards == 0, (config.count, shards)
    count = config.count // shards
    first = shard * count
    recipe = Recipe(config.id, config.options)
    seeds = EnvironmentSeeds(seed, _NAMED.get(config.engine, _EACH), config.count)
    match config.engine:
        case "gymnasium":
            from lockstep.envs.in_process import InProcess

            return InProcess(recipe, seeds, first, count)
        case "gymnasium-vector":
            from lockstep.envs.vector import Vector

            return Vector(recipe, seeds, shard, count)
        case "gymnasium-async":
            from lockstep.envs.subprocesses import Subprocesses

            return Subprocesses(recipe, seeds, first, count, config.timeout)
        case "envpool":
            from lockstep.envs.pool import Pool

            return Pool(recipe, seeds, first, count, config.threads or cores)
        case "ale":
            from lockstep.envs.ale import Arcade

            return Arcade(recipe, seeds, first, count, config.threads or cores)
    raise AssertionError(f"env.engine must be resolved, but is {config.engine!r}")


def describe_env(config: EnvConfig) -> Spaces:
    """The sizes of one environment, which is made as `config.engine` would, whatever `config.count` and `config.threads` are.

    Raises ValueError in one line: unknown id (the nearest is named), something not installed (the extra is named), options
    that the environment does not take, spaces that are not supported, an engine that does not have the environment.
    """
    recipe = Recipe(config.id, config.options)
    if config.engine == "envpool":
        pool = recipe.pool([0])
        try:
            seen = recipe.seen(pool.observation_space)
            return describe(seen, pool.action_space, config.id, frames_per_step=recipe.frames_per_step)
        finally:
            pool.close()
    if config.engine in ("gymnasium-vector", "ale"):
        engine = make_engine(replace(config, count=1, threads=1), 0, 0, 1)
        engine.close()
        return engine.spaces
    return Interface.of(recipe).spaces


def make_one(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """A single environment of Gymnasium, for `play`, `eval` and videos. It does not reset itself.

    Its spaces are its own: `layout.Layout` and `actions.action_converter` lead from and to those of an agent. `config.engine`
    does not matter: what only envpool has can't be looked at. Raises ValueError as `describe_env` does.
    """
    return Recipe(config.id, config.options)(render_mode)


def first_seed(config: EnvConfig, seed: int, index: int) -> int:
    """What environment `index`, from 0 over all shards, was seeded with first in a run with this `seed`.

    With `gymnasium-vector`, which seeds a shard's environments at once, what it would be with `gymnasium`.
    """
    named = _EACH if config.engine == "gymnasium-vector" else _NAMED.get(config.engine, _EACH)
    return EnvironmentSeeds(seed, named, config.count)(index, 0)


def has_time_limit(config: EnvConfig) -> bool:
    """Whether episodes are known to end, sooner or later."""
    if config.engine in ("envpool", "ale") or "max_episode_steps" in config.options:  # those have one everywhere
        return True
    env = make_one(config)
    env.close()
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, TimeLimit):
            return True
        layer = layer.env
    return getattr(layer, "max_episode_steps", None) is not None


def renewed_episode_limit(config: EnvConfig) -> int | None:
    """The most steps of an episode, for an engine that begins new episodes at every checkpoint.

    None for an engine that does not, and where the limit is unknown. `config.engine` must not be `auto` any more.
    """
    recipe = Recipe(config.id, config.options)
    if config.engine not in _NAMED:
        return None
    if recipe.game is not None:
        return recipe.game.steps_per_episode
    if config.engine == "envpool":
        pool = recipe.pool([0])
        pool.close()
        return int(pool.spec.config.max_episode_steps)
    engine = make_engine(replace(config, count=1), 0, 0, 1)
    engine.close()
    limit = config.options.get("max_episode_steps", gym.spec(base_of(config.id)).max_episode_steps)
    return int(limit) if engine.renews and limit is not None else None


@dataclass(frozen=True)
class Known:
    """A line of `lockstep envs`."""

    env_id: str
    family: str
    extra: str | None
    """What to install for it: `pip install 'lockstep-rl[EXTRA]'`; None: nothing."""
    installed: bool
    engine: str
    """What `auto` means for it, with what is installed here."""


def known_ids(per_shard: int = 8) -> list[Known]:
    """The environments that are known to work, in their newest versions, family by family; engines for `per_shard` of them. Without
    Atari games, which are `families.games`.

    Others that are registered with Gymnasium work too if their spaces are supported.
    """
    newest: dict[str, str] = {}
    for env_id in sorted(gym.registry, key=version):
        newest[env_id.rpartition("-v")[0]] = env_id
    lines: list[Known] = []
    for family in FAMILIES:
        if family is ATARI:
            continue
        found = []
        for env_id in sorted(known for known in (*TASKS, *newest.values()) if family_of(known) is family):
            needs = family_of(base_of(env_id))
            found.append(Known(env_id, family.name, needs.extra, needs.installed, choose_engine(env_id, per_shard)))
        lines += sorted(found, key=lambda line: not line.installed)
    return lines

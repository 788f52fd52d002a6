"""Interface of this package: creation of engines and environments, and the list of known environments."""

from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TimeLimit

from lockstep.envs.choice import choose_engine, choose_threads
from lockstep.envs.engine import Engine
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.families import ATARI, FAMILIES, TASKS, base_of, family_of, version
from lockstep.envs.faults import FaultLimit
from lockstep.envs.functions import is_function
from lockstep.envs.interface import Interface
from lockstep.envs.settings import EnvConfig
from lockstep.envs.spaces import Spaces, describe
from lockstep.randomness import EnvironmentSeeds

__all__ = [
    "SAME_EPISODES",
    "KnownEnvironment",
    "agents_of",
    "check_autoreset",
    "describe_env",
    "first_seed",
    "has_time_limit",
    "known_environments",
    "make_engine",
    "make_one",
    "restarted_episode_limit",
    "restarts_episodes",
]


_BATCH_STREAMS = {"gymnasium-vector": "vector", "envpool": "envpool", "ale": "ale"}
"""Names of the seed streams of the engines that step batches."""
_SINGLE_STREAM = "episode"
"""Name of the seed stream that other engines share, so that their trajectories are the same."""

SAME_EPISODES = ("gymnasium", "gymnasium-async")
"""Engines with the same bits: they step the same episodes, and each restores what the other has saved."""


def make_engine(config: EnvConfig, seed: int, shard: int, shards: int, cores: int = 1) -> Engine:
    """Create the engine of one shard.

    The engine steps environments `shard * B` to `shard * B + B - 1` with `B = config.count // shards`. `config.engine`
    must be resolved: not `auto`. Engines with threads use `config.threads` threads or, if that is None, at most
    `cores` (the number of cores of the rank); results are bit-identical for any number. Raises ValueError as `describe_env` does.
    """
    assert config.count % shards == 0, (config.count, shards)
    count = config.count // shards
    first = shard * count
    factory = EnvFactory.from_config(config)
    seeds = EnvironmentSeeds(seed, _BATCH_STREAMS.get(config.engine, _SINGLE_STREAM), config.count)
    match config.engine:
        case "gymnasium":
            from lockstep.envs.in_process import InProcessEngine

            return InProcessEngine(factory, seeds, first, count)
        case "gymnasium-vector":
            from lockstep.envs.vector import VectorEngine

            return VectorEngine(factory, seeds, shard, count)
        case "gymnasium-async":
            from lockstep.envs.subprocesses import SubprocessEngine

            limit = FaultLimit(config.max_faults) if config.on_fault == "replace" else None
            return SubprocessEngine(factory, seeds, first, count, config.timeout, limit)
        case "envpool":
            from lockstep.envs.pool import EnvpoolEngine

            threads = config.threads or choose_threads(config.id, count, cores)
            return EnvpoolEngine(factory, seeds, first, count, threads)
        case "ale":
            from lockstep.envs.ale import AleEngine

            return AleEngine(factory, seeds, first, count, config.threads or cores)
        case "pettingzoo":
            from lockstep.envs.multi_agent import GamesEngine

            agents = len(factory.agents())
            return GamesEngine(factory, EnvironmentSeeds(seed, _SINGLE_STREAM, config.count // agents), first, count)
    raise AssertionError(f"env.engine must be resolved, but is {config.engine!r}")


def describe_env(config: EnvConfig) -> Spaces:
    """Create one environment as `config.engine` creates it, and return the sizes of its spaces.

    `config.count` and `config.threads` are ignored. Raises ValueError in one line for an unknown id (with the most
    similar known one), a missing package (with the extra to install), options that the environment does not accept,
    spaces that are not supported, and an engine that does not have the environment.
    """
    factory = EnvFactory.from_config(config)
    if factory.parallel and config.engine not in ("auto", "pettingzoo"):
        raise ValueError(f"env.engine is {config.engine!r}: {config.id} has several agents; use 'pettingzoo'")
    if config.engine == "envpool":
        pool = factory.make_envpool([0])
        try:
            space = factory.select_columns(pool.observation_space)
            return describe(space, pool.action_space, config.id, frames_per_step=factory.frames_per_step)
        finally:
            pool.close()
    if config.engine in ("gymnasium-vector", "ale"):
        engine = make_engine(replace(config, count=1, threads=1), 0, 0, 1)
        engine.close()
        return engine.spaces
    return Interface.from_factory(factory).spaces


def check_autoreset(config: EnvConfig) -> None:
    """Raise ValueError if a vector environment that is not Gymnasium's own does not have the autoreset mode that it declares."""
    if config.engine != "gymnasium-vector":
        return
    from lockstep.envs.probing import probe_autoreset, probe_reset_mask
    from lockstep.envs.vector import VectorEngine

    entry = getattr(gym.registry.get(base_of(config.id)), "vector_entry_point", None)
    if isinstance(entry, str) and entry.startswith("gymnasium."):
        return
    factory, name = EnvFactory.from_config(config), _BATCH_STREAMS[config.engine]
    probe_autoreset(lambda seed: VectorEngine(factory, EnvironmentSeeds(seed, name, 1), 0, 1), config.id)
    probe_reset_mask(VectorEngine(factory, EnvironmentSeeds(0, name, 1), 0, 2), config.id)


def make_one(config: EnvConfig, render_mode: str | None = None) -> gym.Env[Any, Any]:
    """Create a single Gymnasium environment, for `play`, `eval` and videos. It does not reset itself.

    It has the original spaces: convert observations with `layout.ObservationLayout` and actions with
    `actions.action_converter`. `config.engine` is ignored: an environment that only envpool has can't be created.
    Raises ValueError as `describe_env` does.
    """
    return EnvFactory.from_config(config)(render_mode)


def agents_of(config: EnvConfig) -> list[str]:
    """Return the names of the agents of a parallel environment. Raises ValueError as `describe_env` does."""
    return EnvFactory.from_config(config).agents()


def first_seed(config: EnvConfig, seed: int, index: int) -> int:
    """Return the seed of the first episode of an environment in a run with this `seed`.

    `index` counts the environments of all shards from 0. Engine `gymnasium-vector` seeds all environments of a shard at
    once; for it, return the seed that `gymnasium` would use.
    """
    vector = config.engine == "gymnasium-vector"
    name = _SINGLE_STREAM if vector else _BATCH_STREAMS.get(config.engine, _SINGLE_STREAM)
    return EnvironmentSeeds(seed, name, config.count)(index, 0)


def has_time_limit(config: EnvConfig) -> bool:
    """Return True if the length of episodes is known to be limited."""
    if config.engine in ("envpool", "ale"):  # they limit all episodes
        return True
    if "max_episode_steps" in config.options and not is_function(config.id):  # gymnasium.make reads it
        return True
    env = make_one(config)
    env.close()
    layer: Any = env
    while isinstance(layer, gym.Wrapper):
        if isinstance(layer, TimeLimit):
            return True
        layer = layer.env
    return getattr(layer, "max_episode_steps", None) is not None


def restarts_episodes(config: EnvConfig) -> bool:
    """Return True if the engine begins new episodes at every checkpoint. `config.engine` must be resolved: not `auto`."""
    if config.engine != "gymnasium-vector":
        return config.engine in _BATCH_STREAMS
    engine = make_engine(replace(config, count=1), 0, 0, 1)
    engine.close()
    return engine.restarts_episodes


def restarted_episode_limit(config: EnvConfig) -> int | None:
    """Return the maximum length of an episode, in steps, if the engine begins new episodes at every checkpoint.

    Return None if the length is unknown, or if the engine does not begin new episodes.
    """
    factory = EnvFactory.from_config(config)
    if not restarts_episodes(config):
        return None
    if factory.game is not None:
        return factory.game.steps_per_episode
    if config.engine == "envpool":
        pool = factory.make_envpool([0])
        pool.close()
        return int(pool.spec.config.max_episode_steps)
    known = gym.registry.get(base_of(config.id))
    limit = config.options.get("max_episode_steps", None if known is None else known.max_episode_steps)
    return None if limit is None else int(limit)


@dataclass(frozen=True)
class KnownEnvironment:
    """One environment in the list that `lockstep envs` prints."""

    env_id: str
    family: str
    extra: str | None
    """Extra of lockstep that it needs: `pip install 'lockstep-rl[EXTRA]'`; None: no extra."""
    installed: bool
    """True if the packages that it needs are installed."""
    engine: str
    """Engine that `env.engine: auto` chooses, given the installed packages."""


def known_environments(per_shard: int = 8) -> list[KnownEnvironment]:
    """Return the environments that are known to work, in their newest versions, grouped by family.

    Their engines are chosen for `per_shard` environments per shard. Atari games are not included: `families.games`
    lists them. Other environments that are registered with Gymnasium work too if their spaces are supported.
    """
    newest: dict[str, str] = {}
    for env_id in sorted(gym.registry, key=version):
        newest[env_id.rpartition("-v")[0]] = env_id
    environments: list[KnownEnvironment] = []
    for family in FAMILIES:
        if family is ATARI:
            continue
        members = []
        for env_id in sorted(known for known in (*TASKS, *newest.values()) if family_of(known) is family):
            needed = family_of(base_of(env_id))  # a task needs the packages of the environment that it is based on
            engine = choose_engine(env_id, per_shard)
            members.append(KnownEnvironment(env_id, family.name, needed.extra, needed.installed, engine))
        environments += sorted(members, key=lambda environment: not environment.installed)
    return environments

"""Choice of the engine for `env.engine: auto`, by environment, number per shard, options and installed packages."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from lockstep.envs.atari import is_game
from lockstep.envs.families import base_of, is_vector_only
from lockstep.envs.parallel import is_parallel_id
from lockstep.envs.settings import EngineName

__all__ = ["FASTER", "choose_engine", "choose_threads"]

FASTER: dict[str, tuple[int, EngineName]] = {
    "Acrobot-v1": (2, "envpool"),
    "CartPole-v1": (8, "gymnasium-vector"),
    "MountainCar-v0": (8, "envpool"),
    "MountainCarContinuous-v0": (64, "envpool"),
    "Pendulum-v1": (8, "envpool"),
    "BipedalWalker-v3": (1, "envpool"),
    "BipedalWalkerHardcore-v3": (1, "envpool"),
    "LunarLander-v3": (4, "envpool"),
    "LunarLanderContinuous-v3": (4, "envpool"),
    "Ant-v5": (16, "envpool"),
    "HalfCheetah-v5": (16, "envpool"),
    "Hopper-v5": (4, "envpool"),
    "InvertedPendulum-v5": (4, "envpool"),
    "Pusher-v5": (8, "envpool"),
    "Reacher-v5": (8, "envpool"),
    "Swimmer-v5": (16, "envpool"),
    "Walker2d-v5": (8, "envpool"),
    "CliffWalking-v1": (16, "envpool"),
    "CliffWalkingSlippery-v1": (16, "envpool"),
    "FrozenLake-v1": (8, "envpool"),
    "FrozenLake8x8-v1": (16, "envpool"),
}
"""Minimum number of environments per shard for an engine other than `gymnasium`, and that engine, by environment.

Measured by benchmarks/engines.py. For an engine that restores its environments exactly, it is the number from which the
engine is faster. envpool begins new episodes at every checkpoint: for it, it is the number from which envpool is at
least 20 % faster, for this number and all larger ones. Environments that are not in the table use `gymnasium`: envpool
is not faster (HumanoidStandup), does not have the environment (Taxi), or gives different observations: those of
Blackjack differ in size; in Humanoid and InvertedDoublePendulum some numbers are always 0 in one of the two and not in
the other. `gymnasium-async` was never the fastest.
"""


_LIGHT = {
    *("Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"),
    *("CliffWalking-v1", "CliffWalkingSlippery-v1", "FrozenLake-v1", "FrozenLake8x8-v1"),
}
"""Environments of envpool whose steps take less time than it takes to wake a thread."""
_PER_THREAD = 64
"""Light environments per thread."""


def choose_threads(env_id: str, per_shard: int, cores: int) -> int:
    """Return the number of threads with which envpool steps `per_shard` environments fastest on `cores` cores."""
    return min(cores, max(1, per_shard // _PER_THREAD)) if base_of(env_id) in _LIGHT else cores


def choose_engine(
    env_id: str,
    per_shard: int,
    options: Mapping[str, Any] | None = None,
    wrapped: bool = False,
    isolated: bool = False,
) -> EngineName:
    """Return the engine that was measured to be the fastest for `per_shard` environments per shard.

    Return `gymnasium` for environments that were not measured, for `wrapped` environments, and for environments with
    options: these are arguments of Gymnasium's environments, which other engines may not accept. Return `gymnasium-vector`
    for environments that have only a vector version. Return `ale` for Atari games: it is faster than
    envpool and `gymnasium` for any number; but only envpool supports `episodic_life`. Return `gymnasium-async` if each environment is to be
    `isolated` in a process of its own.
    """
    if is_parallel_id(env_id):
        return "pettingzoo"
    if isolated:
        return "gymnasium-async"
    if wrapped:
        return "gymnasium"
    if is_vector_only(env_id):
        return "gymnasium-vector"
    if is_game(env_id):
        episodic_life = (options or {}).get("episodic_life", False)
        return "envpool" if episodic_life else "ale"
    default: tuple[int, EngineName] = (0, "gymnasium")
    min_count, engine = FASTER.get(base_of(env_id), default)
    if per_shard < min_count or options or (engine == "envpool" and find_spec("envpool") is None):
        return "gymnasium"
    return engine

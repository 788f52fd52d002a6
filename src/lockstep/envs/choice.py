"""Which engine `env.engine: auto` means: a pure function of (environment, number per shard, options, installed packages)."""

from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from lockstep.envs.atari import is_game
from lockstep.envs.families import base_of
from lockstep.envs.settings import EngineName

__all__ = ["FASTER", "choose_engine"]

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
"""From how many environments per shard another engine than `gymnasium` is the better one; measured by benchmarks/engines.py.

An engine that restores exactly need only be faster. envpool, which begins new episodes at every checkpoint, must be faster
by 20 %, from that number on. Not here, so always `gymnasium`: where envpool is not faster (HumanoidStandup), what it does not
have (Taxi), and where its observations are others than Gymnasium's: Blackjack's have another size; in Humanoid and
InvertedDoublePendulum some numbers are always 0 in one of the two and not in the other. `gymnasium-async` never won.
"""


def choose_engine(env_id: str, per_shard: int, options: Mapping[str, Any] | None = None) -> EngineName:
    """The fastest engine that was measured for `per_shard` environments; `gymnasium` for environments that were not.

    With options it is `gymnasium` as well: they are its environments' arguments, which other engines may not know. For Atari games it is
    `ale`, which is faster than envpool and `gymnasium` for any number; but only envpool plays by lives.
    """
    if is_game(env_id):
        life = (options or {}).get("episodic_life", False)
        return "envpool" if life else "ale"
    default: tuple[int, EngineName] = (0, "gymnasium")
    least, engine = FASTER.get(base_of(env_id), default)
    if per_shard < least or options or (engine == "envpool" and find_spec("envpool") is None):
        return "gymnasium"
    return engine

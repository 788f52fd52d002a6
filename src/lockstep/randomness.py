"""Named random streams: every random number of an experiment is a function of (seed, name, keys).

No generator is shared, and none is kept from one iteration to the next. A stream is derived from the experiment's seed,
a name and integers such as the shard, the environment or the iteration, at the place where it is used. So random
numbers do not depend on the process that draws them or on earlier draws, and a checkpoint does not have to save random
states.

The derivation is NumPy's `SeedSequence`, a hash that is designed to give independent streams for neighboring keys
(O'Neill, "Developing a seed_seq alternative", 2015). The spawn key is `(crc32(name), *keys)`.

All streams, and their keys:

    weights                        initial parameters of the policy
    curiosity                      initial parameters of a curiosity method
    episode, vector, envpool, ale  seeds of the episodes of an engine, by its kind: environment, episode
    actions                        exploration noise: shard, iteration
    minibatches                    permutations of a shard's samples: shard, iteration
    shared-minibatches             permutations of all samples (`plan.share_data`): iteration
    training-evaluation            seeds of episodes of evaluation during training: episode
    training-evaluation-actions    sampled actions there
    evaluation                     seeds of the episodes of `lockstep eval`: episode
    evaluation-actions             sampled actions there
    videos                         sampled actions of videos during training: environment, iteration
    check, check-actions           seeds of episodes and random actions of checks of an environment: episode
    bench-actions, export          random inputs of benchmarks and of the comparison with an exported policy
    simulate                       orders of measured iterations in predictions of speed: number of ranks
"""

from zlib import crc32

import numpy as np

__all__ = ["EnvironmentSeeds", "seed_of", "stream"]


def _sequence(seed: int, name: str, keys: tuple[int, ...]) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(crc32(name.encode()), *keys))


def stream(seed: int, name: str, *keys: int) -> np.random.Generator:
    """Return the generator of stream `name` at `keys`, e.g. `stream(seed, "minibatches", shard, iteration)`."""
    return np.random.Generator(np.random.PCG64(_sequence(seed, name, keys)))


def seed_of(seed: int, name: str, *keys: int) -> int:
    """Return a seed in [0, 2**31). Two of n may be equal by chance, with a probability of about n² / 2³²."""
    return int(_sequence(seed, name, keys).generate_state(1, np.uint32)[0] >> 1)


class EnvironmentSeeds:
    """Seeds in [0, 2**31) for the episodes of `environments` environments, no two of which are equal.

    Episode n, counted over all environments, has the seed `(factor · n + offset) mod 2³¹`. With an odd factor this is a
    bijection, so seeds repeat only after 2³¹ episodes. Factor and offset are derived from the experiment's seed and
    `name`. Seeds have 31 bits because envpool takes a signed 32-bit seed.
    """

    def __init__(self, seed: int, name: str, environments: int) -> None:
        factor, self._offset = (int(word) for word in _sequence(seed, name, ()).generate_state(2, np.uint32))
        self._factor = factor | 1
        self._environments = environments

    def __call__(self, environment: int, episode: int) -> int:
        """Return the seed of `episode` (from 0) of `environment` (from 0 to environments - 1)."""
        return (self._factor * (episode * self._environments + environment) + self._offset) % 2**31

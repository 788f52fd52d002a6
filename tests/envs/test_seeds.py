"""No two environments of an experiment begin an episode with the same seed."""

import numpy as np
import pytest

from lockstep.envs import episodes
from lockstep.envs.catalog import make_engine
from lockstep.envs.settings import EnvConfig
from lockstep.randomness import seed_of


@pytest.mark.parametrize("seed", [0, 1, 2, 12345, 2**62])
def test_64_environments_times_50_episodes_have_seeds_of_their_own(seed: int) -> None:
    # 31 bits: two of these 6,464 seeds are equal in 1 % of experiments, which is chance; equal by construction they never are
    seeds = [seed_of(seed, "episode", i, e) for i in range(64) for e in range(50)]
    seeds += [seed_of(seed, "envpool", i, k) for i in range(64) for k in range(50)]
    seeds += [seed_of(seed, "vector", shard, 0) for shard in range(64)]
    assert len(set(seeds)) == len(seeds)


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_engines_use_these_seeds(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[object, ...]] = []

    def noted(*keys: object) -> int:
        used.append(keys)
        return seed_of(*keys)  # type: ignore[arg-type]

    monkeypatch.setattr(episodes, "seed_of", noted)
    for shard in range(shards):
        engine = make_engine(EnvConfig(id="CartPole-v1", engine="gymnasium", count=8), 5, shard, shards)
        engine.reset()
        for _ in range(60):
            engine.step(np.zeros(8 // shards, dtype=np.int64))
    assert len(set(used)) == len(used) > 8 * 4
    assert {keys[2] for keys in used} == set(range(8))
    for index in range(8):
        assert [keys[3] for keys in used if keys[2] == index] == list(range(sum(keys[2] == index for keys in used)))


def test_no_two_first_observations_are_equal() -> None:
    for engine_name in ("gymnasium", "gymnasium-vector", "envpool"):
        if engine_name == "envpool":
            pytest.importorskip("envpool")
        rows = set()
        for shard in range(4):
            engine = make_engine(EnvConfig(engine=engine_name, count=64), 5, shard, 4)  # type: ignore[arg-type]
            rows |= {row.tobytes() for row in engine.reset()}
            engine.close()
        assert len(rows) == 64, engine_name

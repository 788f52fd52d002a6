"""Seeds of episodes: no two episodes of an experiment begin with the same one."""

import numpy as np
import pytest

from lockstep.envs.catalog import make_engine
from lockstep.envs.settings import EnvConfig
from lockstep.randomness import EnvironmentSeeds


@pytest.mark.parametrize("seed", [0, 1, 2, 12345, 2**62])
@pytest.mark.parametrize("environments", [1, 8, 63, 4096])
def test_no_two_episodes_have_the_same_seed(seed: int, environments: int) -> None:
    seeds = EnvironmentSeeds(seed, "episode", environments)
    values = [seeds(i, e) for e in range(400_000 // environments) for i in range(environments)]
    assert len(set(values)) == len(values)
    assert min(values) >= 0
    assert max(values) < 2**31


@pytest.mark.parametrize("shards", [1, 2, 4])
def test_engines_seed_every_episode_once(shards: int, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[tuple[int, int]] = []
    original = EnvironmentSeeds.__call__

    def recorded(seeds: EnvironmentSeeds, environment: int, episode: int) -> int:
        used.append((environment, episode))
        return original(seeds, environment, episode)

    monkeypatch.setattr(EnvironmentSeeds, "__call__", recorded)
    for shard in range(shards):
        engine = make_engine(EnvConfig(id="CartPole-v1", engine="gymnasium", count=8), 5, shard, shards)
        engine.reset()
        for _ in range(60):
            engine.step(np.zeros(8 // shards, dtype=np.int64))
    assert len(set(used)) == len(used) > 8 * 4
    for index in range(8):
        episodes = [episode for environment, episode in used if environment == index]
        assert episodes == list(range(len(episodes)))


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

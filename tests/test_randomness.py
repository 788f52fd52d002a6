"""Named streams: they differ by name, key and seed, and never change from version to version."""

import numpy as np
import pytest

from lockstep.randomness import EnvironmentSeeds, seed_of, stream

GOLDEN_ACTIONS = [1946492145, 1070465045, 2388881957, 1427566346]
GOLDEN_PERMUTATION = [1, 3, 4, 0, 6, 5, 7, 2]
GOLDEN_SEEDS = [181438768, 148400394, 1530373087]
GOLDEN_EPISODES = [623720374, 72284055, 1320127714, 1905990220]
GOLDEN_NORMAL = [-0.5782091208064848, -1.4796609491855583]
GOLDEN_GUMBEL = [2.531236399280182, 1.2985749675333473]


def draw(*arguments: object) -> list[float]:
    return stream(*arguments).random(8).tolist()


def test_a_stream_is_a_function_of_its_arguments() -> None:
    assert draw(1, "actions", 0, 3) == draw(1, "actions", 0, 3)
    assert seed_of(1, "episode", 0, 3) == seed_of(1, "episode", 0, 3)


def test_streams_differ_by_seed_name_and_every_key() -> None:
    streams = [
        (1, "actions", 0, 3),
        (2, "actions", 0, 3),
        (1, "minibatches", 0, 3),
        (1, "actions", 1, 3),
        (1, "actions", 0, 4),
    ]
    streams += [
        (1, "actions", 3, 0),
        (1, "actions"),
        (1, "actions", 0),
        (1, "actions", 0, 3, 0),
        (1, "actions", 0, 0, 3),
    ]
    samples = [tuple(draw(*arguments)) for arguments in streams]
    assert len(set(samples)) == len(streams)
    assert len({seed_of(*arguments) for arguments in streams}) == len(streams)


@pytest.mark.parametrize("seed", [0, 1, 2**62])
def test_no_two_episodes_share_a_seed(seed: int) -> None:
    seeds = EnvironmentSeeds(seed, "episode", 300)
    values = [seeds(environment, episode) for environment in range(300) for episode in range(1000)]
    assert len(set(values)) == len(values)  # 300,000 random numbers of 31 bits would have about 21 equal pairs
    assert min(values) >= 0
    assert 2**30 < max(values) < 2**31  # the whole range is used


def test_seeds_of_episodes_differ_by_seed_and_name() -> None:
    first = [EnvironmentSeeds(seed, name, 4)(0, 0) for seed, name in ((1, "episode"), (2, "episode"), (1, "pool"))]
    assert len(set(first)) == 3


def test_seed_of_is_in_range() -> None:
    values = [seed_of(seed, "weights") for seed in range(500)]
    assert len(set(values)) == 500
    assert min(values) >= 0
    assert 2**30 < max(values) < 2**31


def test_neighboring_streams_are_not_correlated() -> None:
    rows = np.stack([stream(1, "actions", 0, iteration).standard_normal(4000) for iteration in range(6)])
    off_diagonal = np.corrcoef(rows)[~np.eye(6, dtype=bool)]
    assert np.abs(off_diagonal).max() < 4 / np.sqrt(4000)


def test_golden_values() -> None:
    """Compare with the numbers of the first release: other numbers change every experiment, and need a new version."""
    assert stream(1, "actions", 0, 1).integers(0, 2**32, 4).tolist() == GOLDEN_ACTIONS
    assert stream(7, "minibatches", 2, 5).permutation(8).tolist() == GOLDEN_PERMUTATION
    assert [seed_of(1, "episode", 0, 0), seed_of(1, "weights"), seed_of(2**62, "episode", 5, 9)] == GOLDEN_SEEDS
    seeds = EnvironmentSeeds(1, "episode", 4)
    assert [seeds(0, 0), seeds(3, 0), seeds(0, 1), seeds(2, 10**9)] == GOLDEN_EPISODES
    assert stream(0, "actions", 1, 1).standard_normal(2).tolist() == pytest.approx(GOLDEN_NORMAL, abs=1e-15)
    assert stream(0, "actions", 1, 1).gumbel(size=2).tolist() == pytest.approx(GOLDEN_GUMBEL, abs=1e-15)


@pytest.mark.parametrize("keys", [(-1,), (0, -1)])
def test_negative_keys_are_refused(keys: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="non-negative"):
        stream(1, "actions", *keys)

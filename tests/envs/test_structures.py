"""Images, structures and masks in every engine that steps environments written in Python."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from tests.envs.sample_environments import LENGTH, SEEN, register

from lockstep.envs.catalog import describe_env, make_engine
from lockstep.envs.engine import Engine, EnvironmentFailed
from lockstep.envs.settings import EnvConfig
from lockstep.envs.spaces import Spaces

register()
ENGINES = ["gymnasium", "gymnasium-async", "gymnasium-vector"]


def engine_of(name: str, engine: str, count: int = 3, shard: int = 0, shards: int = 1, **options: Any) -> Engine:
    config = EnvConfig(id=f"lockstep-tests/{name}-v0", engine=engine, count=count * shards, options=options)  # type: ignore[arg-type]
    return make_engine(config, 5, shard, shards)


def random_actions(spaces: Spaces, steps: int, count: int) -> np.ndarray:
    """Return random action rows in the form that a policy produces."""
    generator = np.random.default_rng(1)
    if spaces.discrete_actions is not None:
        return generator.integers(0, spaces.discrete_actions, (steps, count))
    choices = generator.integers(0, spaces.choices, (steps, count, len(spaces.choices)))
    low, high = spaces.action_low, spaces.action_high
    continuous = generator.uniform(low, high, (steps, count, spaces.continuous_size))
    return np.concatenate([choices, continuous], axis=2).astype(np.float32)


def play(engine: Engine, actions: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Take a step with each row of actions; return copies of the results and images."""
    return [tuple(np.array(part) for part in (*engine.step(row), engine.pixels)) for row in actions]


def bits(rows: list[tuple[np.ndarray, ...]]) -> list[tuple[bytes, ...]]:
    return [tuple(part.tobytes() for part in row) for row in rows]


@pytest.mark.parametrize("name", list(SEEN))
def test_engines_return_the_same_rows_and_images(name: str) -> None:
    results = {}
    for kind in ("gymnasium", "gymnasium-async"):
        engine = engine_of(name, kind)
        first = (np.array(engine.reset()), np.array(engine.pixels))
        rows = play(engine, random_actions(engine.spaces, 2 * LENGTH + 4, 3))
        assert first[0].shape == (3, engine.spaces.observation_size)
        assert first[1].shape == (3, engine.spaces.pixel_count)
        assert [t for t, row in enumerate(rows) if row[3].any()] == [LENGTH - 1, 2 * LENGTH]
        results[kind] = (first[0].tobytes(), first[1].tobytes(), bits(rows))
        engine.close()
    assert results["gymnasium"] == results["gymnasium-async"]


@pytest.mark.parametrize("name", list(SEEN))
@pytest.mark.parametrize("kind", ["gymnasium", "gymnasium-async"])
def test_structures_are_restored_in_the_middle_of_an_episode(name: str, kind: str) -> None:
    engine, fresh = engine_of(name, kind), engine_of(name, kind)
    actions = random_actions(engine.spaces, 3 * LENGTH, 3)
    engine.reset()
    play(engine, actions[:11])
    state = {key: value.copy() for key, value in engine.state().items()}
    assert all(value.dtype.kind in "biuf" for value in state.values())
    images = np.array(engine.pixels)
    after = play(engine, actions[11:])
    rows = fresh.restore(state)
    assert np.array_equal(rows, state["observations"])
    assert np.array_equal(fresh.pixels, images)
    assert bits(play(fresh, actions[11:])) == bits(after)
    engine.close()
    fresh.close()


def test_a_replay_with_another_image_is_refused() -> None:
    engine = engine_of("Image", "gymnasium")
    engine.reset()
    play(engine, random_actions(engine.spaces, 3, 3))
    state = engine.state()
    state["images"][2, 0] ^= 1
    with pytest.raises(ValueError, match="environment 2 reached a different state"):
        engine.restore(state)
    del state["images"]
    with pytest.raises(ValueError, match="does not hold the state of 3 environments"):
        engine.restore(state)


@pytest.mark.parametrize("name", list(SEEN))
def test_vector_versions_have_the_same_spaces(name: str) -> None:
    single, vector = (engine_of(name, kind) for kind in ("gymnasium", "gymnasium-vector"))
    start = vector.reset()
    assert start.shape == (3, single.spaces.observation_size)
    assert vector.pixels.shape == (3, single.spaces.pixel_count)
    assert (single.spaces.images, single.spaces.choices) == (vector.spaces.images, vector.spaces.choices)
    assert single.spaces.mask_size == vector.spaces.mask_size
    rows = play(vector, random_actions(vector.spaces, LENGTH + 3, 3))
    assert [t for t, row in enumerate(rows) if row[3].any()] == [LENGTH - 1]
    vector.close()


@pytest.mark.parametrize("kind", ENGINES)
def test_the_mask_of_the_last_observation_is_ignored(kind: str) -> None:
    engine = engine_of("Info", kind)
    assert engine.spaces.mask_size == 5
    assert engine.reset()[:, 6:].tolist() == [[1, 0, 0, 1, 0]] * 3
    rows = play(engine, random_actions(engine.spaces, LENGTH + 1, 3))
    assert rows[0][0][:, 6:].tolist() == [[1, 0, 1, 1, 0]] * 3
    assert rows[LENGTH - 1][0][:, 6:].tolist() == [[1] * 5] * 3  # the original mask forbids everything
    assert rows[LENGTH][0][:, 6:].tolist() == [[1, 0, 0, 1, 0]] * 3
    engine.close()


@pytest.mark.parametrize("kind", ["gymnasium", "gymnasium-async"])
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("shape", r"returned an observation outside its observation space: got ndarray of shape \(2,\) and type float32, expected Box.* \(after the reset to episode 1\)"),
        ("type", r"returned an observation outside its observation space: got ndarray of shape \(3,\) and type float64, expected Box.* \(after the reset to episode 1\)"),
        ("missing", r"returned an observation outside its observation space at \['place'\]: got dict without this entry, expected Box.* \(after the reset to episode 1\)"),
        ("value", r"returned an observation outside its observation space: got 4, expected Discrete\(4\) \(after action 0 in episode 0\)"),
        ("far", r"returned an observation outside its observation space: got \[-1\], expected Discrete\(4\) \(after action 0 in episode 0\)"),
        ("mask", r"returned an action_mask that forbids all 5 options \(after action 0 in episode 0\)"),
    ],
)  # fmt: skip
def test_an_environment_that_violates_its_space_is_named(kind: str, wrong: str, words: str) -> None:
    engine = engine_of("Wrong", kind, count=2, shard=1, shards=2, wrong=wrong)
    engine.reset()
    with pytest.raises(EnvironmentFailed, match=rf"^environment [23] \(lockstep-tests/Wrong-v0\) {words}$"):
        play(engine, np.zeros((LENGTH + 2, 2), dtype=np.int64))
    engine.close()


def test_a_vector_version_that_violates_its_space_is_named() -> None:
    engine = engine_of("Wrong", "gymnasium-vector", wrong="mask")
    engine.reset()
    with pytest.raises(
        EnvironmentFailed, match=r"^one of environments 0 to 2 \(.*\) returned an action_mask that forbids all 5"
    ):
        play(engine, np.zeros((LENGTH, 3), dtype=np.int64))


@pytest.mark.skipif("Taxi-v4" not in gym.registry, reason="Gymnasium 1.3 or newer has it")
def test_taxi_masks_moves_into_walls() -> None:
    spaces = describe_env(EnvConfig(id="Taxi-v4"))
    assert (spaces.observation_size, spaces.feature_size, spaces.mask_size) == (506, 500, 6)
    engine = make_engine(EnvConfig(id="Taxi-v4", engine="gymnasium", count=2), 1, 0, 1)
    rows, generator = np.array(engine.reset()), np.random.default_rng(0)
    taxi: Any = gym.make("Taxi-v4").unwrapped
    for _ in range(50):
        masks, cells = rows[:, 500:], rows[:, :500].argmax(1)
        assert (rows[:, :500].sum(1) == 1).all()
        assert np.array_equal(masks, [taxi.action_mask(cell) for cell in cells])
        actions = [generator.choice(np.flatnonzero(mask)) for mask in masks]
        rows = np.array(engine.step(np.array(actions))[0])
    engine.close()

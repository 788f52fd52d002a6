"""Atari games: the same preprocessing in every engine, episode ends, seeds, options."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.envs.actions import action_converter
from lockstep.envs.catalog import describe_env, make_engine, make_one
from lockstep.envs.choice import choose_engine
from lockstep.envs.engine import Engine
from lockstep.envs.families import games
from lockstep.envs.layout import ObservationLayout
from lockstep.envs.settings import EnvConfig

pytestmark = pytest.mark.extra("ale_py", "cv2")

ENGINES = ["ale", "envpool", "gymnasium"]


def engine_of(
    name: str,
    game: str = "Pong",
    count: int = 2,
    shard: int = 0,
    shards: int = 1,
    cores: int = 1,
    seed: int = 3,
    **options: Any,
) -> Engine:
    if name == "envpool":
        pytest.importorskip("envpool")
    config = EnvConfig(id=f"ALE/{game}-v5", engine=name, count=count * shards, options=options)  # type: ignore[arg-type]
    return make_engine(config, seed, shard, shards, cores)


def play(engine: Engine, actions: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Take a step with each row of actions; return copies of rewards, terminated, truncated and images."""
    return [tuple(np.array(part) for part in (*engine.step(row)[1:], engine.pixels)) for row in actions]


def random_actions(engine: Engine, steps: int, count: int = 2) -> np.ndarray:
    assert engine.spaces.discrete_actions
    return np.random.default_rng(0).integers(0, engine.spaces.discrete_actions, (steps, count))


def bits(rows: list[tuple[np.ndarray, ...]]) -> list[tuple[bytes, ...]]:
    return [tuple(part.tobytes() for part in row) for row in rows]


@pytest.mark.parametrize("name", ENGINES)
def test_an_observation_is_four_gray_screens(name: str) -> None:
    engine = engine_of(name)
    spaces = engine.spaces
    assert (spaces.images, spaces.observation_size, spaces.choices) == (((4, 84, 84),), 0, (6,))
    assert spaces.frames_per_step == 4
    described = describe_env(EnvConfig(id="ALE/Pong-v5", engine=name))  # type: ignore[arg-type]
    assert (described.images, described.choices, described.frames_per_step) == (spaces.images, (6,), 4)
    assert engine.reset().shape == (2, 0)
    assert engine.pixels.shape == (2, 4 * 84 * 84)
    assert engine.pixels.dtype == np.uint8
    before = np.array(engine.pixels)
    ((rewards, _, _, after),) = play(engine, random_actions(engine, 1))
    assert rewards.shape == (2,)
    assert np.array_equal(after.reshape(2, 4, -1)[:, :3], before.reshape(2, 4, -1)[:, 1:])  # the newest screen is last
    engine.close()
    engine.close()


def play_single(game: str, actions: np.ndarray, **options: float) -> list[tuple[bytes, ...]]:
    """Play in a single environment, as `lockstep play` does; return images, rewards, terminated and truncated."""
    env = make_one(EnvConfig(id=f"ALE/{game}-v5", options=options))  # type: ignore[arg-type]
    layout = ObservationLayout(env.observation_space, describe_env(EnvConfig(id=f"ALE/{game}-v5", engine="gymnasium")))
    convert = action_converter(env.action_space)
    rows = [(layout.pixels(env.reset(seed=1)[0]).tobytes(),)]
    for row in actions:
        observation, reward, terminated, truncated, _ = env.step(int(convert(row)[0]))
        rows.append((layout.pixels(observation).tobytes(), float(reward), terminated, truncated))  # type: ignore[arg-type]
    env.close()
    return rows


@pytest.mark.parametrize("game", ["Pong", "Breakout"])
def test_ale_and_gymnasium_give_the_same_screens(game: str) -> None:
    """Compare all frames, without random action repeats. Agents train with one engine and are evaluated with the other."""
    engine = engine_of("ale", game, count=1, repeat_action_probability=0, noop_max=2)
    actions = random_actions(engine, 100, 1)
    expected = play_single(game, actions, repeat_action_probability=0, noop_max=1)
    equal = []
    for start in range(12):  # ale-py draws from 0 to noop_max - 1 no-ops, Gymnasium from 1 to noop_max
        engine.restart_episodes(start)
        rows: list[tuple[Any, ...]] = [(engine.pixels.tobytes(),)]
        for rewards, terminated, truncated, pixels in play(engine, actions):
            rows.append((pixels.tobytes(), float(rewards[0]), bool(terminated[0]), bool(truncated[0])))
        equal.append(rows == expected)
    engine.close()
    assert 2 <= sum(equal) <= 10


@pytest.mark.parametrize("name", ENGINES)
def test_end_of_a_game_terminates_the_episode_before_a_reset_row(name: str) -> None:
    engine = engine_of(name, "Breakout")
    engine.reset()
    waiting, previous, ends, scores = np.zeros(2, dtype=bool), np.array(engine.pixels), 0, []
    for rewards, terminated, truncated, pixels in play(engine, random_actions(engine, 700)):
        assert not truncated.any()
        assert not rewards[waiting].any()
        assert not terminated[waiting].any()
        for index in np.flatnonzero(waiting):  # a new game: black screens and a first screen, or 4 copies of that
            old, new = previous[index].reshape(4, -1), pixels[index].reshape(4, -1)
            assert not np.array_equal(new[:3], old[1:])
            assert np.array_equal(new[0], new[1])
            assert np.array_equal(new[1], new[2])
        waiting = terminated | truncated
        ends += int(waiting.sum())
        scores += rewards[rewards > 0].tolist()
        previous = pixels
    engine.close()
    assert 2 <= ends <= 20  # episodes are games of 5 lives, not lives
    assert set(scores) <= {1.0, 4.0, 7.0}


@pytest.mark.parametrize("name", ENGINES)
def test_rewards_are_not_clipped(name: str) -> None:
    engine = engine_of(name, "MsPacman")
    engine.reset()
    rewards_seen = {float(reward) for rewards, *_ in play(engine, random_actions(engine, 150)) for reward in rewards}
    engine.close()
    assert max(rewards_seen) >= 10


@pytest.mark.parametrize("name", ENGINES)
def test_frame_limit_truncates_the_episode(name: str) -> None:
    engine = engine_of(name, max_num_frames_per_episode=100)
    engine.reset()
    rows = play(engine, random_actions(engine, 70))
    engine.close()
    assert not any(row[1].any() for row in rows)
    for index in range(2):
        cut = [t for t, row in enumerate(rows) if row[2][index]]
        assert len(cut) >= 2
        assert cut[0] <= 25
        for t in cut:
            if t + 1 < len(rows):
                assert not rows[t + 1][2][index]
                assert rows[t + 1][0][index] == 0
                fresh = rows[t + 1][3][index].reshape(4, -1)
                assert np.array_equal(fresh[0], fresh[2])


@pytest.mark.parametrize("name", ENGINES)
def test_shards_and_threads_do_not_change_results(name: str) -> None:
    one_shard = engine_of(name, count=4, max_num_frames_per_episode=120)
    threaded = engine_of(name, count=4, cores=3, max_num_frames_per_episode=120)
    halves = [engine_of(name, shard=shard, shards=2, max_num_frames_per_episode=120) for shard in range(2)]
    actions = random_actions(one_shard, 40, 4)
    for engine in (one_shard, threaded, *halves):
        engine.reset()
    start = np.array(one_shard.pixels)
    assert np.array_equal(start, threaded.pixels)
    assert np.array_equal(start, np.concatenate([half.pixels for half in halves]))
    rows = play(one_shard, actions)
    assert len({image.tobytes() for image in rows[-1][3]}) == 4
    assert bits(rows) == bits(play(threaded, actions))
    parts = [play(half, actions[:, 2 * k : 2 * k + 2]) for k, half in enumerate(halves)]
    concatenated = [tuple(map(np.concatenate, zip(*both, strict=True))) for both in zip(*parts, strict=True)]
    assert bits(rows) == bits(concatenated)


@pytest.mark.parametrize("name", ["ale", "envpool"])
def test_renewed_games_depend_only_on_the_iteration(name: str) -> None:
    one, other = engine_of(name), engine_of(name)
    one.reset()
    assert one.restarts_episodes
    assert one.state() == {}
    actions = random_actions(one, 60)
    first = play(one, actions[:37])
    for engine in (one, other):
        engine.restart_episodes(50)
    assert np.array_equal(one.pixels, other.pixels)
    renewed_rows = bits(play(one, actions))
    assert renewed_rows == bits(play(other, actions))
    assert renewed_rows[:37] != bits(first)


def test_single_games_are_restored_by_replay() -> None:
    engine, fresh = engine_of("gymnasium"), engine_of("gymnasium")
    engine.reset()
    actions = random_actions(engine, 90)
    play(engine, actions[:60])
    state = {key: value.copy() for key, value in engine.state().items()}
    after = bits(play(engine, actions[60:]))
    fresh.restore(state)
    assert bits(play(fresh, actions[60:])) == after


@pytest.mark.extra("envpool")
def test_episodes_may_end_with_each_life() -> None:
    engine = engine_of("envpool", "Breakout", episodic_life=True)
    engine.reset()
    rows = play(engine, random_actions(engine, 700))
    assert sum(int(row[1].sum()) for row in rows) >= 10
    assert choose_engine("ALE/Breakout-v5", 8, {"episodic_life": True}) == "envpool"
    assert choose_engine("ALE/Breakout-v5", 8, {"noop_max": 7}) == choose_engine("ALE/Breakout-v5", 8) == "ale"
    # accepted for evaluation, where episodes are whole games
    make_one(EnvConfig(id="ALE/Breakout-v5", options={"episodic_life": True})).close()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig(id="ALE/Pongg-v5"), "env.id is 'ALE/Pongg-v5': there is no such environment; did you mean 'ALE/Pong-v5'? For one of your own, pass --env.module"),
        (EnvConfig(id="pong"), "env.id is 'pong': there is no such environment; did you mean 'ALE/Pong-v5'?"),
        (EnvConfig(id="ALE/Pong-v5", options={"mode": 1}), "env.options has 'mode', which ALE/Pong-v5 does not take; it takes repeat_action_probability, full_action_space, frameskip, noop_max, max_num_frames_per_episode, episodic_life"),
        (EnvConfig(id="ALE/Pong-v5", options={"noop_max": 0}), "env.options has noop_max = 0: it must be a whole number, at least 1"),
        (EnvConfig(id="ALE/Pong-v5", options={"frameskip": 2.5}), "env.options has frameskip = 2.5: it must be a whole number, at least 1"),
        (EnvConfig(id="ALE/Pong-v5", options={"repeat_action_probability": 2}), "env.options has repeat_action_probability = 2: it must be a number from 0 to 1"),
        (EnvConfig(id="ALE/Pong-v5", options={"full_action_space": 1}), "env.options has full_action_space = 1: it must be true or false"),
        (EnvConfig(id="ALE/Pong-v5", engine="ale", options={"episodic_life": True}), "env.options has 'episodic_life', which engine 'ale' does not have; use 'envpool'"),
        (EnvConfig(id="ALE/Pong-v5", engine="gymnasium", options={"episodic_life": True}), "env.options has 'episodic_life', which engine 'gymnasium' does not have; use 'envpool'"),
        (EnvConfig(id="ALE/Pong-v5", engine="gymnasium-vector"), "env.engine is 'gymnasium-vector': Gymnasium has no vector version of ALE/Pong-v5; use 'ale'"),
        (EnvConfig(id="CartPole-v1", engine="ale"), "env.engine is 'ale': this engine has only Atari games such as ALE/Pong-v5, not 'CartPole-v1'; use 'gymnasium'"),
    ],
)  # fmt: skip
def test_invalid_config_is_reported_in_one_line(config: EnvConfig, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        describe_env(config)


def test_options_are_passed_to_every_engine() -> None:
    for name in ENGINES:
        engine = engine_of(name, full_action_space=True, frameskip=2)
        assert (engine.spaces.choices, engine.spaces.frames_per_step) == ((18,), 2)
        engine.close()


def test_games_can_be_rendered() -> None:
    env = make_one(EnvConfig(id="ALE/Pong-v5"), render_mode="rgb_array")
    env.reset(seed=1)
    env.step(0)
    frame: Any = env.render()
    assert frame.shape == (210, 160, 3)
    env.close()


def test_all_games_are_listed() -> None:
    assert {"ALE/Pong-v5", "ALE/Breakout-v5"} < set(games())
    assert len(games()) > 100


def test_auto_selects_the_fastest_measured_engine(root: Path) -> None:
    """Compare with benchmarks/atari.json, in which `ale` is the fastest for every number of environments."""
    rates: dict[tuple[str, int], dict[str, int]] = {}
    for record in json.loads((root / "benchmarks/atari.json").read_text())["records"]:
        rates.setdefault((record["environment"], record["count"]), {})[record["engine"]] = record["steps_per_second"]
    assert len(rates) == 12
    for (env_id, count), rate_by_engine in rates.items():
        assert choose_engine(env_id, count) == max(rate_by_engine, key=lambda engine: rate_by_engine[engine])

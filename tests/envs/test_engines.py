"""The protocol of engines, with real environments: episode ends, seeds, exact restore."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from lockstep.envs.catalog import make_engine
from lockstep.envs.engine import Engine
from lockstep.envs.pool import _direct_step
from lockstep.envs.settings import EnvConfig
from lockstep.envs.spaces import Spaces

REQUIRED_MODULES = {
    "LunarLander-v3": "Box2D",
    "BipedalWalker-v3": "Box2D",
    "Reacher-v5": "mujoco",
    "HalfCheetah-v5": "mujoco",
}


def engine_of(
    env_id: str, engine: str, count: int = 3, seed: int = 7, shard: int = 0, shards: int = 1, **options: float
) -> Engine:
    for module in (REQUIRED_MODULES.get(env_id), "envpool" if engine == "envpool" else None):
        if module:
            pytest.importorskip(module)
    config = EnvConfig(id=env_id, engine=engine, count=count * shards, options=options)  # type: ignore[arg-type]
    return make_engine(config, seed, shard, shards)


def actions_of(spaces: Spaces, steps: int, count: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if spaces.discrete_actions is not None:
        return generator.integers(0, spaces.discrete_actions, (steps, count))
    return generator.uniform(spaces.action_low, spaces.action_high, (steps, count, spaces.action_size)).astype(
        np.float32
    )


def trajectory(engine: Engine, actions: np.ndarray) -> list[tuple[np.ndarray, ...]]:
    """Take a step with each row of actions; return copies of the results."""
    return [tuple(np.array(part) for part in engine.step(row)) for row in actions]


def same_results(one: list[tuple[np.ndarray, ...]], other: list[tuple[np.ndarray, ...]]) -> bool:
    return len(one) == len(other) and all(
        a.tobytes() == b.tobytes() and a.dtype == b.dtype and a.shape == b.shape
        for result, other_result in zip(one, other, strict=True)
        for a, b in zip(result, other_result, strict=True)
    )


# pairs of environment and engine, all with next-step autoreset
ENGINES = [
    ("CartPole-v1", "gymnasium"),
    ("CartPole-v1", "gymnasium-vector"),
    ("CartPole-v1", "gymnasium-async"),
    ("CartPole-v1", "envpool"),
    ("Pendulum-v1", "gymnasium"),
    ("Pendulum-v1", "envpool"),
    ("pendulum-sparse", "gymnasium"),
    ("FrozenLake-v1", "gymnasium"),
    ("FrozenLake-v1", "envpool"),
    ("Reacher-v5", "gymnasium"),
    ("Reacher-v5", "envpool"),
    ("LunarLander-v3", "gymnasium"),
    ("LunarLander-v3", "envpool"),
]


@pytest.mark.parametrize(("env_id", "name"), ENGINES)
def test_the_step_after_an_end_is_a_reset_row(env_id: str, name: str) -> None:
    engine = engine_of(env_id, name)
    first = np.array(engine.reset())
    assert first.shape == (3, engine.spaces.observation_size)
    assert np.issubdtype(first.dtype, np.floating)
    waiting = np.zeros(3, dtype=bool)
    ends = 0
    previous = first
    for observations, rewards, terminated, truncated in trajectory(engine, actions_of(engine.spaces, 450, 3)):
        assert observations.shape == first.shape
        assert rewards.shape == terminated.shape == truncated.shape == (3,)
        assert terminated.dtype == truncated.dtype == np.bool_
        assert not rewards[waiting].any()
        assert not terminated[waiting].any()
        assert not truncated[waiting].any()
        if env_id != "FrozenLake-v1":  # a new episode, not the last observation again
            assert all(not np.array_equal(observations[i], previous[i]) for i in np.flatnonzero(waiting))
        else:
            assert (observations[waiting][:, 0] == 1).all()
        waiting = terminated | truncated
        ends += int(waiting.sum())
        previous = observations
    engine.close()
    engine.close()
    assert ends >= 3


@pytest.mark.parametrize("name", ["gymnasium", "gymnasium-async", "envpool"])
def test_a_time_limit_truncates_and_gives_the_last_observation(name: str) -> None:
    engine = engine_of("Pendulum-v1", name, count=2)
    engine.reset()
    rows = trajectory(engine, actions_of(engine.spaces, 405, 2))
    engine.close()
    assert [t for t, row in enumerate(rows) if row[3].any()] == [199, 400]  # the reset row is step 200
    assert not any(row[2].any() for row in rows)
    assert (rows[199][1] != 0).all()
    assert (rows[200][1] == 0).all()
    # the last observation continues the one before it: a pendulum turns by at most 8 rad/s * 0.05 s
    angle = [np.arctan2(row[0][:, 1], row[0][:, 0]) for row in rows[198:200]]
    assert (np.abs(np.angle(np.exp(1j * (angle[1] - angle[0])))) <= 0.4 + 1e-5).all()


@pytest.mark.parametrize("name", ["gymnasium", "gymnasium-vector", "gymnasium-async", "envpool"])
def test_a_fall_terminates_and_gives_the_last_observation(name: str) -> None:
    engine = engine_of("CartPole-v1", name, count=2)
    engine.reset()
    rows = trajectory(engine, np.ones((60, 2), dtype=np.int64))
    engine.close()
    ends = [t for t, row in enumerate(rows) if row[2][0]]
    assert len(ends) >= 3
    assert not any(row[3].any() for row in rows)
    for t in ends:
        assert abs(rows[t][0][0, 2]) > 12 * np.pi / 180  # the pole has fallen
        assert rows[t][1][0] == 1
        if t + 1 < len(rows):
            assert abs(rows[t + 1][0][0]).max() <= 0.05
            assert rows[t + 1][1][0] == 0


RESTORED = [
    "CartPole-v1",
    "Pendulum-v1",
    "pendulum-dense",
    "LunarLander-v3",
    "BipedalWalker-v3",
    "Reacher-v5",
    "HalfCheetah-v5",
    "FrozenLake-v1",
]


@pytest.mark.parametrize(
    ("env_id", "name"),
    [(env_id, "gymnasium") for env_id in RESTORED]
    + [
        ("CartPole-v1", "gymnasium-vector"),
        ("CartPole-v0", "gymnasium-vector"),
        ("Pendulum-v1", "gymnasium-async"),
        ("Reacher-v5", "gymnasium-async"),
    ],
)
def test_restored_engines_continue_with_the_same_bits(env_id: str, name: str) -> None:
    engine = engine_of(env_id, name)
    engine.reset()
    actions = actions_of(engine.spaces, 500, 3)
    before = trajectory(engine, actions[:300])
    state = {key: value.copy() for key, value in engine.state().items()}
    after = trajectory(engine, actions[300:])
    engine.close()
    assert all(value.dtype.kind in "biuf" for value in state.values())  # plain numbers, which need no pickle

    fresh = engine_of(env_id, name)
    observations = fresh.restore(state)
    assert observations.tobytes() == before[-1][0].tobytes()
    restored_state = fresh.state()
    assert set(restored_state) == set(state)
    assert all(restored_state[key].tobytes() == state[key].tobytes() for key in state)
    assert same_results(trajectory(fresh, actions[300:]), after)
    fresh.close()


@pytest.mark.parametrize("name", ["gymnasium", "gymnasium-vector"])
def test_every_point_of_an_episode_can_be_restored(name: str) -> None:
    engine = engine_of("CartPole-v1", name, count=2)
    engine.reset()
    actions = actions_of(engine.spaces, 60, 2)
    states, rows = [], []
    for row in actions:
        states.append(engine.state())
        rows += trajectory(engine, row[None])
    ended = {t for t, row in enumerate(rows) if row[2].any()}
    assert ended
    for t in {0, 1, *ended, *(t + 1 for t in ended), *(t + 2 for t in ended)} & set(range(55)):
        engine.restore(states[t])
        assert same_results(trajectory(engine, actions[t : t + 5]), rows[t : t + 5]), t
    engine.close()


@pytest.mark.parametrize("steps", [1024, 1026, 5000])  # the history is pruned every 1024 steps
def test_the_history_does_not_grow_with_the_run(steps: int) -> None:
    engine = engine_of("CartPole-v1", "gymnasium", count=2)
    engine.reset()
    actions = actions_of(engine.spaces, steps, 2)
    trajectory(engine, actions)
    state = engine.state()
    assert len(engine._history.blocks) <= 2  # type: ignore[attr-defined]
    after = trajectory(engine, actions[:50])
    engine.restore(state)
    assert same_results(trajectory(engine, actions[:50]), after)


def test_a_replay_with_another_observation_is_refused() -> None:
    engine = engine_of("Pendulum-v1", "gymnasium", count=2, shard=1, shards=2)
    engine.reset()
    trajectory(engine, actions_of(engine.spaces, 20, 2))
    state = engine.state()
    state["observations"][1, 0] = np.nextafter(state["observations"][1, 0], np.float32(2))
    with pytest.raises(ValueError, match="environment 3 reached a different state"):
        engine.restore(state)
    with pytest.raises(ValueError, match="does not hold the state of 2 environments"):
        engine.restore({})


@pytest.mark.parametrize("env_id", ["CartPole-v1", "LunarLander-v3", "Reacher-v5", "FrozenLake-v1"])
def test_worker_processes_do_not_change_results(env_id: str) -> None:
    engines = [engine_of(env_id, name, count=2) for name in ("gymnasium", "gymnasium-async")]
    starts = [np.array(engine.reset()) for engine in engines]
    actions = actions_of(engines[0].spaces, 150, 2)
    rows = [trajectory(engine, actions) for engine in engines]
    states = [engine.state() for engine in engines]
    engines[0].restore(states[1])  # the state of the other engine
    engines[1].restore(states[0])
    rows_after_restore = [trajectory(engine, actions[:20]) for engine in engines]
    for engine in engines:
        engine.close()
    assert starts[0].tobytes() == starts[1].tobytes()
    assert same_results(*rows)
    assert same_results(*rows_after_restore)


@pytest.mark.parametrize(
    ("env_id", "name"),
    [("CartPole-v1", "gymnasium"), ("Reacher-v5", "gymnasium"), ("CartPole-v1", "envpool"), ("Reacher-v5", "envpool")],
)
def test_shards_do_not_change_results(env_id: str, name: str) -> None:
    one_shard = engine_of(env_id, name, count=4)
    halves = [engine_of(env_id, name, count=2, shard=shard, shards=2) for shard in range(2)]
    start, starts = np.array(one_shard.reset()), [np.array(half.reset()) for half in halves]
    actions = actions_of(one_shard.spaces, 120, 4)
    rows = trajectory(one_shard, actions)
    parts = [trajectory(half, actions[:, 2 * i : 2 * i + 2]) for i, half in enumerate(halves)]
    assert start.tobytes() == np.concatenate(starts).tobytes()
    assert same_results(
        rows, [tuple(np.concatenate(pair) for pair in zip(*step, strict=True)) for step in zip(*parts, strict=True)]
    )


@pytest.mark.parametrize("name", ["gymnasium", "gymnasium-vector", "envpool"])
def test_the_first_observations_depend_on_seed_and_shard(name: str) -> None:
    starts = [np.array(engine_of("CartPole-v1", name, seed=seed).reset()) for seed in (1, 1, 2)]
    assert starts[0].tobytes() == starts[1].tobytes() != starts[2].tobytes()
    shards = [np.array(engine_of("CartPole-v1", name, shard=shard, shards=2).reset()) for shard in range(2)]
    assert len({row.tobytes() for shard in shards for row in shard}) == 6


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Reacher-v5"])
def test_renewed_engines_depend_only_on_the_iteration(env_id: str) -> None:
    used, fresh = engine_of(env_id, "envpool"), engine_of(env_id, "envpool")
    assert used.restarts_episodes
    assert used.state() == {}
    start = np.array(used.reset())
    actions = actions_of(used.spaces, 100, 3)
    trajectory(used, actions[:37])
    renewed = [np.array(engine.restart_episodes(50)) for engine in (used, fresh)]
    assert renewed[0].tobytes() == renewed[1].tobytes() != start.tobytes()
    assert same_results(trajectory(used, actions), trajectory(fresh, actions))
    assert np.array(used.restart_episodes(100)).tobytes() != renewed[0].tobytes()


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Pendulum-v1", "HalfCheetah-v5", "pendulum-no-velocity"])
def test_direct_steps_of_envpool_are_those_of_its_method(env_id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    direct, public = (engine_of(env_id, "envpool") for _ in range(2))
    assert direct._step != direct._envs.step
    monkeypatch.setattr(public, "_step", public._envs.step)
    actions = actions_of(direct.spaces, 250, 3)
    assert np.array(direct.reset()).tobytes() == np.array(public.reset()).tobytes()
    assert same_results(trajectory(direct, actions), trajectory(public, actions))


def test_envpool_without_the_private_methods_is_stepped_by_its_public_one() -> None:
    pool = engine_of("CartPole-v1", "envpool")._envs
    names = ("_send", "_recv", "_state_keys", "_action_keys", "_spec", "all_env_ids")
    parts = {name: getattr(pool, name) for name in names}
    assert _direct_step(SimpleNamespace(**parts)) is not None
    for name in names:
        assert _direct_step(SimpleNamespace(**{other: parts[other] for other in names if other != name})) is None
    assert _direct_step(SimpleNamespace(**parts | {"_action_keys": ["env_id", "action"]})) is None
    assert (
        _direct_step(SimpleNamespace(**parts | {"_state_keys": ["obs:a", "obs:b", "reward", "done", "trunc"]})) is None
    )


def test_steps_of_envpool_have_infos_if_they_are_recorded() -> None:
    pytest.importorskip("envpool")
    engine = make_engine(
        EnvConfig(id="CartPole-v1", engine="envpool", count=3, info_metrics=("elapsed_step",)), 7, 0, 1
    )
    assert engine._step == engine._envs.step
    engine.reset()
    engine.step(np.zeros(3, np.int64))


def test_a_failing_environment_is_named() -> None:
    engine = engine_of("CartPole-v1", "gymnasium", count=2, shard=1, shards=2)
    engine.reset()
    with pytest.raises(RuntimeError, match=r"environment 2 \(CartPole-v1\) failed: AssertionError"):
        engine.step(np.array([7, 0]))


@pytest.mark.parametrize(("env_id", "threads"), [("CartPole-v1", [1, 1, 1, 3]), ("Reacher-v5", [1, 2, 5, 3])])
def test_threads_of_envpool_do_not_change_results(env_id: str, threads: list[int]) -> None:
    engine_of(env_id, "envpool")  # skips the test if a package is missing
    config = EnvConfig(id=env_id, engine="envpool", count=6)
    engines = [make_engine(config, 7, 0, 1, cores) for cores in (1, 2, 5)]
    engines.append(make_engine(replace(config, threads=3), 7, 0, 1, cores=1))
    assert [engine._threads for engine in engines] == threads
    starts = {np.array(engine.reset()).tobytes() for engine in engines}
    actions = actions_of(engines[0].spaces, 250, 6)
    first, *others = (trajectory(engine, actions) for engine in engines)
    assert len(starts) == 1
    assert all(same_results(first, other) for other in others)

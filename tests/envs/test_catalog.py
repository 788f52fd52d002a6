"""What users meet first: ids, extras, options, spaces, and the choice of the engine."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep.envs.catalog import describe_env, known_ids, make_engine, make_one, renewed_episode_limit
from lockstep.envs.choice import FASTER, choose_engine
from lockstep.envs.families import family_of
from lockstep.envs.settings import EngineName, EnvConfig
from lockstep.envs.single import Recipe


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig(id="CartPol-v1"), "env.id is 'CartPol-v1': there is no such environment; did you mean 'CartPole-v1'?"),
        (EnvConfig(id="reacher"), "env.id is 'reacher': there is no such environment; did you mean 'Reacher-v5'?"),
        (EnvConfig(id="LunarLander-v2"), "env.id is 'LunarLander-v2': there is no such environment; did you mean 'LunarLander-v3'?"),
        (EnvConfig(id="pendulum_dense"), "env.id is 'pendulum_dense': there is no such environment; did you mean 'pendulum-dense'?"),
        (EnvConfig(id="zzz"), "env.id is 'zzz': there is no such environment; `lockstep envs` lists those that there are"),
        (EnvConfig(id="os:CartPole-v1"), "env.id is 'os:CartPole-v1': an id with ':' would import a module and is not accepted; give the id alone"),
        (EnvConfig(options={"gravityy": 3}), "env.options has 'gravityy', which CartPole-v1 does not take"),
        (EnvConfig(id="pendulum-dense", options={"g": 3}), "env.options has 'g', which pendulum-dense does not take"),
        (EnvConfig(id="CartPole-v1", engine="gymnasium-vector", options={"g": 3}), "env.options has 'g', which CartPole-v1 does not take"),
        (EnvConfig(options={"render_mode": "human"}), "env.options has 'render_mode', which lockstep sets itself; leave it out"),
        (EnvConfig(id="Pendulum-v1", engine="gymnasium-vector"), "env.engine is 'gymnasium-vector': Pendulum-v1 has no batched version; use 'gymnasium'"),
        (EnvConfig(id="pendulum-dense", engine="gymnasium-vector"), "env.engine is 'gymnasium-vector': pendulum-dense has no batched version; use 'gymnasium'"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line(config: EnvConfig, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        describe_env(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig(id="pendulum-dense", engine="envpool"), "env.engine is 'envpool': it has no environment 'pendulum-dense'; use 'gymnasium'"),
        (EnvConfig(engine="envpool", options={"g": 3}), "env.options has 'g', which CartPole-v1 does not take"),
    ],
)  # fmt: skip
def test_bad_input_to_envpool_gets_one_line(config: EnvConfig, message: str) -> None:
    pytest.importorskip("envpool")
    test_bad_input_gets_one_line(config, message)


def test_bad_option_values_get_one_line() -> None:
    pytest.importorskip("Box2D")
    with pytest.raises(
        ValueError, match=r"^env.options is \{'gravity': 5\}: LunarLander-v3 can't be made with it: gravity .*$"
    ):
        describe_env(EnvConfig(id="LunarLander-v3", options={"gravity": 5}))


def test_old_mujoco_gets_one_line() -> None:
    pytest.importorskip("mujoco")
    with pytest.raises(ValueError, match=r"^env.id is 'Reacher-v2': it can't be made: .*$"):
        describe_env(EnvConfig(id="Reacher-v2"))


@pytest.mark.parametrize(
    ("env_id", "module", "extra"), [("LunarLander-v3", "Box2D", "box2d"), ("Reacher-v5", "mujoco", "mujoco")]
)
def test_a_missing_extra_is_named(env_id: str, module: str, extra: str, environ: dict[str, str]) -> None:
    message = in_process_without(module, f"describe_env(EnvConfig(id={env_id!r}))", environ)
    assert (
        message
        == f"env.id is {env_id!r}: {family_of(env_id).name} is not installed; pip install 'lockstep-rl[{extra}]'"
    )
    message = in_process_without("envpool", f"describe_env(EnvConfig(id={env_id!r}, engine='envpool'))", environ)
    assert message == "env.engine is 'envpool': it is not installed; pip install 'lockstep-rl[envpool]'"


def in_process_without(module: str, call: str, environ: dict[str, str]) -> str:
    """What `call` raises in a process where `module` can't be imported."""
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from lockstep.envs.catalog import *; from lockstep.envs.choice import choose_engine\n"
        "from lockstep.envs.settings import EnvConfig\n"
        f"try: print({call}, end='')\nexcept ValueError as error: print(error, end='')"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environ).stdout


def test_options_reach_the_environment() -> None:
    assert describe_env(EnvConfig(id="CartPole-v1")).discrete_actions == 2
    engine = make_engine(
        EnvConfig(id="CartPole-v1", engine="gymnasium", count=1, options={"max_episode_steps": 3}), 1, 0, 1
    )
    engine.reset()
    assert [bool(engine.step(np.zeros(1, dtype=np.int64))[3][0]) for _ in range(8)] == [
        False,
        False,
        True,
        False,
        False,
        False,
        True,
        False,
    ]
    pytest.importorskip("Box2D")
    assert describe_env(EnvConfig(id="LunarLander-v3", options={"continuous": True})).action_size == 2


def test_everything_that_is_listed_works() -> None:
    """Makes each, steps it through several episodes, and restores it in the middle of one."""
    lines = known_ids()
    assert len(lines) == len({line.env_id for line in lines}) > 25
    assert {line.family for line in lines} == {"tasks of lockstep", "classic control", "Box2D", "MuJoCo", "toy text"}
    for line in lines:
        if not line.installed:
            continue
        spaces = describe_env(EnvConfig(id=line.env_id))
        limit = {} if line.family == "tasks of lockstep" else {"max_episode_steps": 25}
        config = EnvConfig(id=line.env_id, engine="gymnasium", count=2, options=limit)
        engine, fresh = (make_engine(config, 3, 0, 1) for _ in range(2))
        generator = np.random.default_rng(0)
        if spaces.discrete_actions:
            actions = generator.integers(0, spaces.discrete_actions, (90, 2))
        else:
            actions = generator.uniform(spaces.action_low, spaces.action_high, (90, 2, spaces.action_size)).astype(
                np.float32
            )
        assert engine.reset().shape == (2, spaces.observation_size)
        for row in actions[:70]:
            engine.step(row)
        fresh.restore(engine.state())
        for row in actions[70:]:
            for part, other in zip(engine.step(row), fresh.step(row), strict=True):
                assert part.tobytes() == other.tobytes(), line.env_id
        engine.close()
        fresh.close()


def test_auto_never_changes_the_spaces() -> None:
    for line in known_ids(per_shard=64):
        if line.installed and line.engine != "gymnasium":
            one, other = (describe_env(EnvConfig(id=line.env_id, engine=name)) for name in ("gymnasium", line.engine))  # type: ignore[arg-type]
            assert one.observation_size == other.observation_size, line.env_id
            assert (one.choices, one.continuous_size) == (other.choices, other.continuous_size), line.env_id
            assert np.array_equal(one.action_low, other.action_low), line.env_id
            assert np.array_equal(one.action_high, other.action_high), line.env_id


OTHER_OBSERVATIONS = {"Blackjack-v1", "Humanoid-v5", "InvertedDoublePendulum-v5"}  # in envpool than in Gymnasium


def test_auto_is_what_was_measured(root: Path) -> None:
    """The shipped table follows from benchmarks/engines.json by the rule that stands beside it."""
    rates: dict[str, dict[int, dict[str, float]]] = {}
    for record in json.loads((root / "benchmarks/engines.json").read_text())["records"]:
        by_count = rates.setdefault(record["environment"], {})
        by_count.setdefault(record["count"], {})[record["engine"]] = record["steps_per_second"]
    expected = {}
    for env_id, by_count in rates.items():
        for engine, factor in (("envpool", 1.2), ("gymnasium-vector", 1.0)):
            wins = [count for count, rate in by_count.items() if rate.get(engine, 0) > factor * rate["gymnasium"]]
            losses = [count for count in by_count if count not in wins]
            lasting = [count for count in wins if count > max(losses, default=0)]
            if lasting and env_id not in OTHER_OBSERVATIONS:
                expected[env_id] = (min(lasting), engine)
    assert expected == FASTER


@pytest.mark.extra("envpool")
def test_auto_depends_on_the_number_the_options_and_what_is_installed(environ: dict[str, str]) -> None:
    assert [choose_engine("CartPole-v1", count) for count in (1, 7, 8, 64)] == ["gymnasium"] * 2 + [
        "gymnasium-vector"
    ] * 2
    assert [choose_engine("Reacher-v5", count) for count in (7, 8)] == ["gymnasium", "envpool"]
    assert choose_engine("Reacher-v5", 8, {"reward_control_weight": 0.2}) == "gymnasium"
    assert choose_engine("pendulum-dense", 64) == choose_engine("Mine-v0", 64) == "gymnasium"
    assert in_process_without("envpool", "choose_engine('Reacher-v5', 64)", environ) == "gymnasium"


def test_one_environment_draws_only_on_demand() -> None:
    assert make_one(EnvConfig(id="CartPole-v1")).render_mode is None
    pytest.importorskip("pygame")
    env = make_one(EnvConfig(id="pendulum-dense"), render_mode="rgb_array")
    env.reset(seed=1)
    frame = env.render()
    assert isinstance(frame, np.ndarray)
    assert frame.dtype == np.uint8
    assert frame.shape[2] == 3


@pytest.mark.parametrize(
    ("env_id", "engine", "maker", "observation"),
    [
        ("CartPole-v1", "gymnasium-vector", "vector", 4),
        pytest.param("ALE/Pong-v5", "ale", "games", 0, marks=pytest.mark.extra("ale_py")),
    ],
)
def test_a_description_takes_one_environment(
    env_id: str, engine: EngineName, maker: str, observation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, make = [], getattr(Recipe, maker)

    def count(recipe: Recipe, *numbers: int) -> object:
        asked.append(numbers)
        return make(recipe, *(1 for _ in numbers))

    monkeypatch.setattr(Recipe, maker, count)
    spaces = describe_env(EnvConfig(env_id, engine, count=1_000_000, threads=4096))
    assert spaces.observation_size == observation
    assert asked == [(1,) if maker == "vector" else (1, 1)]


def test_known_spaces() -> None:
    sizes = describe_env(EnvConfig(id="FrozenLake-v1"))
    assert (sizes.observation_size, sizes.choices, sizes.continuous_size) == (16, (4,), 0)
    sizes = describe_env(EnvConfig(id="Pendulum-v1"))
    assert (sizes.observation_size, sizes.choices, sizes.continuous_size) == (3, (), 1)
    assert (sizes.action_low, sizes.action_high) == (np.float32(-2), np.float32(2))
    assert describe_env(EnvConfig(id="Blackjack-v1")).observation_size == 32 + 11 + 2


@pytest.mark.parametrize(
    ("env_id", "engine", "options", "limit"),
    [
        pytest.param("Ant-v4", "envpool", {}, 1000, marks=pytest.mark.extra("envpool")),
        pytest.param("CartPole-v1", "envpool", {"max_episode_steps": 50}, 50, marks=pytest.mark.extra("envpool")),
        ("ALE/Pong-v5", "ale", {}, 27_000),
        ("ALE/Pong-v5", "ale", {"max_num_frames_per_episode": 400}, 100),
        ("CartPole-v1", "gymnasium-vector", {}, None),
        ("CartPole-v1", "gymnasium", {}, None),
    ],
)
def test_episode_limit_of_engines_that_renew(
    env_id: str, engine: str, options: dict[str, int], limit: int | None
) -> None:
    config = EnvConfig(id=env_id, engine=engine, options=options, count=4)
    assert renewed_episode_limit(config) == limit

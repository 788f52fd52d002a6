"""Ids, extras, options and spaces of environments, and the choice of the engine."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep.envs.catalog import describe_env, known_environments, make_engine, make_one, restarted_episode_limit
from lockstep.envs.choice import FASTER, choose_engine, choose_threads
from lockstep.envs.env_factory import EnvFactory
from lockstep.envs.families import family_of
from lockstep.envs.settings import EngineName, EnvConfig


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig(id="CartPol-v1"), "env.id is 'CartPol-v1': there is no such environment; did you mean 'CartPole-v1'? For one of your own, pass --env.module"),
        (EnvConfig(id="reacher"), "env.id is 'reacher': there is no such environment; did you mean 'Reacher-v5'?"),
        (EnvConfig(id="LunarLander-v2"), "env.id is 'LunarLander-v2': there is no such environment; did you mean 'LunarLander-v3'?"),
        (EnvConfig(id="pendulum_dense"), "env.id is 'pendulum_dense': there is no such environment; did you mean 'pendulum-dense'? For one of your own, pass --env.module"),
        (EnvConfig(id="zzz"), "env.id is 'zzz': there is no such environment; `lockstep envs` lists the known environments; for one of your own, pass --env.module"),
        (EnvConfig(id="os:CartPole-v1"), "env.id is 'os:CartPole-v1': an id with ':' would import a module and is not accepted; give the id alone"),
        (EnvConfig(options={"gravityy": 3}), "env.options has 'gravityy', which CartPole-v1 does not take"),
        (EnvConfig(id="pendulum-dense", options={"g": 3}), "env.options has 'g', which pendulum-dense does not take"),
        (EnvConfig(id="CartPole-v1", engine="gymnasium-vector", options={"g": 3}), "env.options has 'g', which CartPole-v1 does not take"),
        (EnvConfig(options={"render_mode": "human"}), "env.options has 'render_mode', which lockstep sets itself; leave it out"),
        (EnvConfig(id="Pendulum-v1", engine="gymnasium-vector"), "env.engine is 'gymnasium-vector': Pendulum-v1 has no vector version; use 'gymnasium'"),
        (EnvConfig(id="pendulum-dense", engine="gymnasium-vector"), "env.engine is 'gymnasium-vector': pendulum-dense has no vector version; use 'gymnasium'"),
    ],
)  # fmt: skip
# before Gymnasium 1.3, a vector environment that could not be created raises in its destructor too
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_invalid_config_is_reported_in_one_line(config: EnvConfig, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        describe_env(config)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (EnvConfig(id="pendulum-dense", engine="envpool"), "env.engine is 'envpool': envpool has no environment 'pendulum-dense'; use 'gymnasium'"),
        (EnvConfig(engine="envpool", options={"g": 3}), "env.options has 'g', which CartPole-v1 does not take"),
    ],
)  # fmt: skip
def test_invalid_config_for_envpool_is_reported_in_one_line(config: EnvConfig, message: str) -> None:
    pytest.importorskip("envpool")
    test_invalid_config_is_reported_in_one_line(config, message)


def test_invalid_option_values_are_reported_in_one_line() -> None:
    pytest.importorskip("Box2D")
    with pytest.raises(
        ValueError,
        match=r"^env.options is \{'gravity': 5\}: LunarLander-v3 can't be created with these options: gravity .*$",
    ):
        describe_env(EnvConfig(id="LunarLander-v3", options={"gravity": 5}))


def test_old_mujoco_versions_are_reported_in_one_line() -> None:
    pytest.importorskip("mujoco")
    with pytest.raises(ValueError, match=r"^env.id is 'Reacher-v2': the environment can't be created: .*$"):
        describe_env(EnvConfig(id="Reacher-v2"))


@pytest.mark.parametrize(
    ("env_id", "module", "extra"), [("LunarLander-v3", "Box2D", "box2d"), ("Reacher-v5", "mujoco", "mujoco")]
)
def test_a_missing_extra_is_named(env_id: str, module: str, extra: str, environ: dict[str, str]) -> None:
    message = output_without(module, f"describe_env(EnvConfig(id={env_id!r}))", environ)
    assert (
        message
        == f"env.id is {env_id!r}: {family_of(env_id).name} is not installed; pip install 'lockstep-rl[{extra}]'"
    )
    message = output_without("envpool", f"describe_env(EnvConfig(id={env_id!r}, engine='envpool'))", environ)
    assert message == "env.engine is 'envpool': envpool is not installed; pip install 'lockstep-rl[envpool]'"


def output_without(module: str, call: str, environ: dict[str, str]) -> str:
    """Return the result of `call`, or the message that it raises, in a process in which `module` can't be imported."""
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from lockstep.envs.catalog import *; from lockstep.envs.choice import choose_engine\n"
        "from lockstep.envs.settings import EnvConfig\n"
        f"try: print({call}, end='')\nexcept ValueError as error: print(error, end='')"
    )
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environ).stdout


def test_options_are_passed_to_the_environment() -> None:
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


def test_all_known_environments_work() -> None:
    """Step each environment through several episodes, and restore it in the middle of one."""
    known = known_environments()
    assert len(known) == len({entry.env_id for entry in known}) > 25
    assert {entry.family for entry in known} == {"tasks of lockstep", "classic control", "Box2D", "MuJoCo", "toy text"}
    for entry in known:
        if not entry.installed:
            continue
        spaces = describe_env(EnvConfig(id=entry.env_id))
        limit = {} if entry.family == "tasks of lockstep" else {"max_episode_steps": 25}
        config = EnvConfig(id=entry.env_id, engine="gymnasium", count=2, options=limit)
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
                assert part.tobytes() == other.tobytes(), entry.env_id
        engine.close()
        fresh.close()


def test_choice_of_the_engine_does_not_change_the_spaces() -> None:
    for entry in known_environments(per_shard=64):
        if entry.installed and entry.engine != "gymnasium":
            plain = describe_env(EnvConfig(id=entry.env_id, engine="gymnasium"))
            faster = describe_env(EnvConfig(id=entry.env_id, engine=entry.engine))  # type: ignore[arg-type]
            assert plain.observation_size == faster.observation_size, entry.env_id
            assert (plain.choices, plain.continuous_size) == (faster.choices, faster.continuous_size), entry.env_id
            assert np.array_equal(plain.action_low, faster.action_low), entry.env_id
            assert np.array_equal(plain.action_high, faster.action_high), entry.env_id


# environments whose observations differ between envpool and Gymnasium
OTHER_OBSERVATIONS = {"Blackjack-v1", "Humanoid-v5", "InvertedDoublePendulum-v5"}


def test_auto_selects_the_fastest_measured_engine(root: Path) -> None:
    """Derive the table `FASTER` from benchmarks/engines.json, by the rule in its docstring."""
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


def test_light_environments_have_one_thread_per_64() -> None:
    for env_id in ("Pendulum-v1", "pendulum-no-velocity"):
        assert [choose_threads(env_id, count, 4) for count in (1, 8, 127, 128, 1000)] == [1, 1, 1, 2, 4]
    assert [choose_threads("LunarLander-v3", count, 4) for count in (1, 8, 1000)] == [4, 4, 4]


@pytest.mark.extra("envpool")
def test_auto_depends_on_number_options_and_installed_packages(environ: dict[str, str]) -> None:
    assert [choose_engine("CartPole-v1", count) for count in (1, 7, 8, 64)] == ["gymnasium"] * 2 + [
        "gymnasium-vector"
    ] * 2
    assert [choose_engine("Reacher-v5", count) for count in (7, 8)] == ["gymnasium", "envpool"]
    assert choose_engine("Reacher-v5", 8, {"reward_control_weight": 0.2}) == "gymnasium"
    assert choose_engine("pendulum-dense", 64) == choose_engine("Mine-v0", 64) == "gymnasium"
    assert output_without("envpool", "choose_engine('Reacher-v5', 64)", environ) == "gymnasium"


def test_an_environment_renders_only_on_request() -> None:
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
        ("CartPole-v1", "gymnasium-vector", "make_vector", 4),
        pytest.param("ALE/Pong-v5", "ale", "make_atari_vector", 0, marks=pytest.mark.extra("ale_py")),
    ],
)
def test_a_description_creates_only_one_environment(
    env_id: str, engine: EngineName, maker: str, observation: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, make = [], getattr(EnvFactory, maker)

    def make_one_environment(factory: EnvFactory, *numbers: int) -> object:
        calls.append(numbers)
        return make(factory, *(1 for _ in numbers))

    monkeypatch.setattr(EnvFactory, maker, make_one_environment)
    spaces = describe_env(EnvConfig(env_id, engine, count=1_000_000, threads=4096))
    assert spaces.observation_size == observation
    assert calls == [(1,) if maker == "make_vector" else (1, 1)]


def test_sizes_of_known_environments() -> None:
    spaces = describe_env(EnvConfig(id="FrozenLake-v1"))
    assert (spaces.observation_size, spaces.choices, spaces.continuous_size) == (16, (4,), 0)
    spaces = describe_env(EnvConfig(id="Pendulum-v1"))
    assert (spaces.observation_size, spaces.choices, spaces.continuous_size) == (3, (), 1)
    assert (spaces.action_low, spaces.action_high) == (np.float32(-2), np.float32(2))
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
def test_episode_limit_of_renewed_engines(env_id: str, engine: str, options: dict[str, int], limit: int | None) -> None:
    config = EnvConfig(id=env_id, engine=engine, options=options, count=4)
    assert restarted_episode_limit(config) == limit

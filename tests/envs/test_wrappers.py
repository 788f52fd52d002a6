"""Wrappers that a config names: `env.wrappers`."""

import sys
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.envs.catalog import describe_env, has_time_limit, make_engine, make_one
from lockstep.envs.settings import EnvConfig
from lockstep.envs.wrapper_calls import WrapperCall, parse_wrapper


class Doubled(gym.RewardWrapper[Any, Any]):
    """Wrapper of a user: rewards are multiplied."""

    def __init__(self, env: gym.Env[Any, Any], factor: float = 2.0) -> None:
        super().__init__(env)
        self._factor = factor

    def reward(self, reward: Any) -> float:
        return float(reward) * self._factor


@pytest.fixture(name="module")
def fixture_module(monkeypatch: pytest.MonkeyPatch) -> str:
    module = ModuleType("wrappers_of_a_test")
    module.Doubled = Doubled  # type: ignore[attr-defined]
    module.nothing = lambda env: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FlattenObservation", WrapperCall("FlattenObservation", {})),
        ("TimeLimit(max_episode_steps=5)", WrapperCall("TimeLimit", {"max_episode_steps": 5})),
        (" ResizeObservation(shape=(84, 84)) ", WrapperCall("ResizeObservation", {"shape": (84, 84)})),
    ],
)
def test_wrapper_is_written_as_a_call(text: str, expected: WrapperCall) -> None:
    assert parse_wrapper(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "TimeLimit(5)",
        "TimeLimit(max_episode_steps=open('x'))",
        "os.system(x=1)",
        "A(",
        "A(**{'x': 1})",
        "A; B",
        "RecordVideo(video_folder=films)",
        "(" * 300,
    ],
)
def test_other_text_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(
        ValueError, match=r"^env\.wrappers has .*with arguments by name, and text in quotes$"
    ) as refused:
        EnvConfig(wrappers=(text,))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        "FrameStackObservation(stack_size=2), ReshapeObservation(shape=(4, 2))",
        "[FrameStackObservation(stack_size=2) ReshapeObservation(shape=(4, 2))]",
        ["FrameStackObservation(stack_size=2)", "ReshapeObservation(shape=(4, 2))"],
    ],
)
def test_flag_and_file_give_the_same_wrappers(value: object) -> None:
    config = decode({"env": {"wrappers": value}}, Config())
    assert config.env.wrappers == ("FrameStackObservation(stack_size=2)", "ReshapeObservation(shape=(4, 2))")
    assert make_one(config.env).observation_space.shape == (4, 2)


def test_the_first_wrapper_is_the_innermost() -> None:
    stacked = EnvConfig(wrappers=("FrameStackObservation(stack_size=2)", "TimeAwareObservation"))
    timed = EnvConfig(wrappers=("TimeAwareObservation", "FrameStackObservation(stack_size=2)"))
    assert (describe_env(stacked).observation_size, describe_env(timed).observation_size) == (9, 10)


def test_wrappers_surround_the_selection_of_columns() -> None:
    config = EnvConfig("cartpole-no-velocity", wrappers=("FrameStackObservation(stack_size=3)",))
    assert describe_env(config).observation_size == 3 * 2


@pytest.mark.extra("cv2", "Box2D")
@pytest.mark.parametrize(
    ("wrappers", "channels"),
    [
        (("ResizeObservation(shape=(40, 44))",), 3),
        (("ResizeObservation(shape=(40, 44))", "FrameStackObservation(stack_size=4)"), 12),
        (("ResizeObservation(shape=(40, 44))", "GrayscaleObservation", "FrameStackObservation(stack_size=4)"), 4),
        pytest.param(
            (
                "RepeatAction(num_repeats=2)",
                "ResizeObservation(shape=(40, 44))",
                "GrayscaleObservation(keep_dim=True)",
                "FrameStackObservation(stack_size=2)",
            ),
            2,
            marks=pytest.mark.skipif(not hasattr(gym.wrappers, "RepeatAction"), reason="Gymnasium 1.3 or newer has it"),
        ),
    ],
)
def test_images_are_resized_and_stacked(wrappers: tuple[str, ...], channels: int) -> None:
    config = EnvConfig("CarRacing-v3", "gymnasium", 1, wrappers=wrappers)
    assert describe_env(config).images == ((channels, 40, 44),)
    engine = make_engine(config, 0, 0, 1)
    engine.reset()
    engine.step(np.zeros((1, 3), np.float32))
    assert engine.pixels.shape == (1, channels * 40 * 44)
    assert len(np.unique(engine.pixels)) > 5
    engine.close()


def test_wrapper_of_the_users_module_changes_rewards(module: str) -> None:
    config = EnvConfig("CartPole-v1", "gymnasium", 2, wrappers=("Doubled(factor=3)",), module=module)
    engine = make_engine(config, 0, 0, 1)
    engine.reset()
    assert engine.step(np.zeros(2, np.int64))[1].tolist() == [3, 3]
    engine.close()


def test_time_limit_is_seen() -> None:
    assert not has_time_limit(EnvConfig("Blackjack-v1", "gymnasium"))
    assert has_time_limit(EnvConfig("Blackjack-v1", "gymnasium", wrappers=("TimeLimit(max_episode_steps=9)",)))


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        (
            "FrameStackObservations(stack_size=2)",
            "not known, and env.module is not given; did you mean FrameStackObservation?",
        ),
        ("Xyz", "not known, and env.module is not given; the wrappers of Gymnasium are ClipAction, "),
        ("NormalizeObservation", "use policy.normalize_observations instead"),
        ("RecordVideo(video_folder='/tmp')", "use run.capture_video instead"),
        ("FrameStackObservation", "can't wrap this environment: .*stack_size"),
        ("ClipAction", "can't wrap this environment: "),
    ],
)
def test_wrapper_that_cannot_be_applied_is_an_error_of_one_line(wrapper: str, message: str) -> None:
    with pytest.raises(ValueError, match=f"^env\\.wrappers has .*{message}") as refused:
        make_one(EnvConfig("CartPole-v1", wrappers=(wrapper,)))
    assert "\n" not in str(refused.value)


def test_function_that_returns_no_environment_is_refused(module: str) -> None:
    with pytest.raises(ValueError, match=r"^env\.wrappers has nothing, which returned NoneType, not a gymnasium\.Env$"):
        make_one(EnvConfig("CartPole-v1", wrappers=("nothing",), module=module))


def test_unknown_wrapper_names_the_module(module: str) -> None:
    with pytest.raises(ValueError, match="not known, and wrappers_of_a_test has no 'Trebled'"):
        make_one(EnvConfig("CartPole-v1", wrappers=("Trebled",), module=module))


@pytest.mark.parametrize("engine", ["gymnasium-vector", "envpool", "ale"])
def test_engines_that_step_batches_refuse_wrappers(engine: Any) -> None:
    with pytest.raises(ValueError, match=f"^env.engine is '{engine}', which can't apply env.wrappers"):
        EnvConfig(engine=engine, wrappers=("FlattenObservation",))
    with pytest.raises(
        ValueError, match=r"^env.engine is 'pettingzoo', which can't apply env.wrappers; leave them out$"
    ):
        EnvConfig(engine="pettingzoo", wrappers=("FlattenObservation",))

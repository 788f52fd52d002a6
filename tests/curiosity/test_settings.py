"""Errors in the `curiosity` section, reported in one line before the run starts."""

import dataclasses

import pytest

from lockstep.config import Config
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.envs.settings import EnvConfig, RolloutConfig
from lockstep.experiment.resolve import resolve
from lockstep.run.settings import RunConfig


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"kind": "rnd", "combine": "two-heads"}, "curiosity.gamma is none: two value heads need a discount factor"),
        ({"gamma": 1.5}, "curiosity.gamma is 1.5: it must be between 0 and 1"),
        ({"forward_share": -1}, "curiosity.forward_share is -1: it must be between 0 and 1"),
        ({"share": 0.3}, "curiosity.share is 0.3: it must be 1 divided by a whole number, such as 0.5 or 0.25"),
        ({"share": 0.0}, "curiosity.share is 0.0: it must be"),
        ({"hidden": ()}, "curiosity.hidden is []: it must name at least one width"),
        ({"feature_size": 0}, "curiosity.feature_size is 0: it must be from 1 to 16,384"),
        ({"channels": 0}, "curiosity.channels is 0: it must be from 1 to 1,000"),
        ({"neighbors": 0}, "curiosity.neighbors is 0: it must be from 1 to 1,000"),
        (
            {"kind": "ngu", "capacity": 5},
            "curiosity.neighbors is 10: it must not be above curiosity.capacity, which is 5",
        ),
        ({"warmup": -1}, "curiosity.warmup is -1: it must not be negative"),
        ({"ridge": 0.0}, "curiosity.ridge is 0.0: it must be above 0"),
        ({"weight": "linear(1)"}, "curiosity.weight is 'linear(1)': it must be a number of at least 0, or a schedule"),
        ({"learning_rate": "fast"}, "curiosity.learning_rate is 'fast': it must be"),
    ],
)
def test_invalid_values_are_reported_in_one_line(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        CuriosityConfig(**settings)  # type: ignore[arg-type]
    assert str(caught.value).startswith(expected)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25, 1 / 3, 0.1])
def test_valid_shares_are_accepted(share: float) -> None:
    assert CuriosityConfig(share=share).share == share


@pytest.mark.parametrize(
    ("settings", "env_id", "expected"),
    [
        (
            {"kind": "ngu"},
            "CliffWalking-v1",
            "curiosity.kind is 'ngu': it compares within an episode, and those of CliffWalking-v1",
        ),
        (
            {"kind": "e3b"},
            "Blackjack-v1",
            "curiosity.kind is 'e3b': it compares within an episode, and those of Blackjack-v1 have no",
        ),
        ({"kind": "rnd", "channels": 1}, "CartPole-v1", "curiosity.channels is 1: CartPole-v1 has no images"),
        (
            {"kind": "re3", "neighbors": 512},
            "CartPole-v1",
            "curiosity.neighbors is 512: a shard's rollout, in which re3 looks for them, has 512 steps",
        ),
        (
            {"kind": "rnd", "warmup": 4},
            "CartPole-v1",
            "curiosity.warmup is 4: the run has 4 iterations, so nothing would be trained",
        ),
    ],
)
def test_unsupported_experiments_are_reported_in_one_line(
    settings: dict[str, object], env_id: str, expected: str
) -> None:
    config = Config(
        env=EnvConfig(env_id, "gymnasium"),
        curiosity=CuriosityConfig(**settings),  # type: ignore[arg-type]
        run=RunConfig(total_steps=8 * 128 * 4),
        rollout=RolloutConfig(128),
    )
    config = dataclasses.replace(config, plan=dataclasses.replace(config.plan, shards=2))
    with pytest.raises(ValueError, match=r".") as caught:
        resolve(config, 1)
    assert str(caught.value).startswith(expected)
    assert len(str(caught.value).splitlines()) == 1


def test_method_with_per_episode_state_accepts_a_configured_time_limit() -> None:
    env = EnvConfig("CliffWalking-v1", "gymnasium", options={"max_episode_steps": 50})
    assert resolve(Config(env=env, curiosity=CuriosityConfig("ngu")), 1).curiosity.kind == "ngu"

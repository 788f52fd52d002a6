"""Trained policies in programs: observations and arguments that do not fit are refused in one line."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from lockstep.algorithm.agent import Agent
from lockstep.envs.catalog import describe_env
from lockstep.envs.functions import register_function
from lockstep.envs.settings import EnvConfig
from lockstep.experiment.policy import TrainedPolicy
from lockstep.models.settings import PolicyConfig


class Numbered(gym.Env[Any, Any]):
    """Environment with numbered states from 3 to 7."""

    observation_space, action_space = gym.spaces.Discrete(5, start=3), gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return 3, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return 4, 1.0, False, True, {}


class Pictured(Numbered):
    """Environment with images."""

    observation_space = gym.spaces.Box(0, 255, (36, 36, 1), np.uint8)  # type: ignore[assignment]


def policy_of(make: Any, **settings: Any) -> TrainedPolicy:
    spaces = describe_env(EnvConfig(register_function(make)))
    agent = Agent(spaces, PolicyConfig(**settings), False, 1, torch.float32)
    return TrainedPolicy(agent, make.observation_space, make.action_space, np.random.default_rng(1))


def test_lists_and_numbers_are_observations_of_numbered_states() -> None:
    policy = policy_of(Numbered)
    actions, _ = policy.predict([3, 4, 7])
    assert actions.tolist() == [policy.act(state) for state in (3, np.int64(4), np.array(7))]


@pytest.mark.parametrize(
    ("make", "observation", "message"),
    [
        (Numbered, 3.0, "observation has numbers of type float64: Discrete(5, start=3) was expected"),
        (Numbered, 8, "the environment returned an observation outside its observation space: got 8"),
        (Pictured, np.zeros((36, 36, 1)), "observation has numbers of type float64: Box(0, 255, (36, 36, 1), uint8)"),
    ],
)
def test_observation_of_another_type_is_refused(make: Any, observation: Any, message: str) -> None:
    policy = policy_of(make)
    for method in (policy.act, policy.predict, policy.value):
        with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
            method(observation)
        assert str(caught.value).startswith(message)


def test_mask_of_one_environment_holds_for_many() -> None:
    class Masked(Numbered):
        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[Any, dict[str, Any]]:
            return 3, {"action_mask": np.array([1, 1], np.int8)}

    policy = policy_of(Masked)
    assert policy.predict([3, 4, 5], action_masks=[0, 1])[0].tolist() == [1, 1, 1]
    assert policy.predict([3, 4, 5], action_masks=[[0, 1], [1, 0], [0, 1]])[0].tolist() == [1, 0, 1]
    with pytest.raises(ValueError, match=r"^action_masks has the shape \(3,\): \(3, 2\) was expected$"):
        policy.predict([3, 4, 5], action_masks=[0, 1, 1])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"state": np.zeros((2, 16))}, "state has the shape (2, 16): (3, 16) was expected"),
        ({"episode_start": [True, False]}, "episode_start has the shape (2,): (3,) was expected"),
    ],
)
def test_state_and_starts_of_another_size_are_refused(wrong: dict[str, Any], message: str) -> None:
    policy = policy_of(Numbered, core="gru", core_size=8)
    state = policy.predict([3, 4, 5], episode_start=[True, True, True])[1]
    assert state is not None
    assert state.shape == (3, 16)
    assert policy.predict([3, 4, 5], state, [False, True, False])[1] is not None
    with pytest.raises(ValueError, match=r"^[^\n]*$") as caught:
        policy.predict([3, 4, 5], **wrong)
    assert str(caught.value) == message


def test_mask_for_a_policy_without_masks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^action_masks is given, but the policy was trained without action masks"):
        policy_of(Numbered).predict([3, 4], action_masks=[0, 1])


@pytest.mark.parametrize(
    ("make", "observations"),
    [(Numbered, [3, 4, 7]), (Pictured, list(np.eye(36, dtype=np.uint8)[:3, :, None, None].repeat(36, 2) * 99))],
)
def test_actions_for_several_environments_are_those_for_each(make: Any, observations: list[Any]) -> None:
    policy = policy_of(make, core="gru")
    together, alone = policy.begin_together(3), []
    actions = [together(observations, [{}] * 3), together(observations[::-1], [{}] * 3)]
    for index in range(3):
        policy.begin()
        alone.append([policy.act(observations[index]), policy.act(observations[2 - index])])
    assert np.transpose(alone).tolist() == actions

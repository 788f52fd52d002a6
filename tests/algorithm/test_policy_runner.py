"""Selecting actions outside of training: kernels and PyTorch give the same actions, and kernels the bits of training."""

from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from tests.compiling.formulas import IMAGES, MASKED, SMALL_IMAGES
from tests.watched import CONTINUOUS, DISCRETE

from lockstep.algorithm.acting import ActingState
from lockstep.algorithm.agent import Agent
from lockstep.algorithm.policy_runner import PolicyRunner
from lockstep.envs.spaces import Spaces
from lockstep.models.settings import PolicyConfig
from lockstep.randomness import stream

STEPS, COUNT = 3, 5
POLICIES: dict[str, tuple[Spaces, dict[str, Any]]] = {
    "choice": (DISCRETE, {}),
    "gaussian": (CONTINUOUS, {"squash": False}),
    "squashed": (CONTINUOUS, {"squash": True}),
    "beta": (CONTINUOUS, {"distribution": "beta", "squash": False}),
    "gsde": (CONTINUOUS, {"distribution": "gsde", "squash": True}),
    "masked choices and components": (MASKED, {}),
    "lstm": (DISCRETE, {"core": "lstm", "core_size": 8}),
    "shared minGRU": (CONTINUOUS, {"core": "mingru", "core_size": 8, "shared": True}),
    "images": (IMAGES, {}),
    "images and memory": (SMALL_IMAGES, {"encoder": "impala", "core": "gru", "core_size": 8}),
}


def agent_of(case: str, kernels: bool, dtype: torch.dtype = torch.float64) -> Agent:
    spaces, settings = POLICIES[case]
    agent = Agent(spaces, PolicyConfig(**settings), False, 1, dtype)
    if kernels:
        agent.use_kernels()
        assert agent.kernels is not None
    return agent


def inputs_of(spaces: Spaces) -> tuple[np.ndarray, np.ndarray | None]:
    """Return observations `[T, B, O]` and pixels `[T, B, P]`, for all steps."""
    rows = stream(3, "test").normal(size=(STEPS, COUNT, spaces.observation_size))
    rows[..., spaces.feature_size :] = 1  # all actions are allowed
    pixels = stream(5, "test").integers(256, size=(STEPS, COUNT, spaces.pixel_count), dtype=np.uint8)
    return rows, pixels if spaces.images else None


def selected(agent: Agent, sample: bool, dtype: type = np.float64) -> list[np.ndarray]:
    """Return the actions of all steps."""
    runner = PolicyRunner(agent, COUNT, stream(4, "test") if sample else None)
    rows, pixels = inputs_of(agent.spaces)
    steps = range(STEPS)
    return [runner.act(rows[t].astype(dtype), None if pixels is None else pixels[t]).copy() for t in steps]


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("case", POLICIES)
def test_kernels_select_the_actions_of_pytorch(case: str, sample: bool) -> None:
    expected, found = (selected(agent_of(case, kernels), sample) for kernels in (False, True))
    for one, other in zip(expected, found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_allclose(other, one, rtol=1e-10, atol=1e-10)
    assert np.ptp(found) > 0 or case == "images"  # whose initial policy prefers one choice


@pytest.mark.parametrize("case", POLICIES)
def test_sampled_actions_have_the_bits_of_training(case: str) -> None:
    agent = agent_of(case, True, torch.float32)
    rows, pixels = inputs_of(agent.spaces)
    generator = stream(4, "test")
    noise = np.stack([agent.distribution.noise(generator, COUNT) for _ in range(STEPS)])
    single = agent.spaces.discrete_actions is not None
    actions = np.zeros((STEPS, COUNT), np.int64) if single else np.zeros((STEPS, COUNT, agent.spaces.action_size))
    memory = None
    if agent.state_size:
        states, ended = torch.zeros(STEPS, COUNT, agent.state_size), np.zeros((STEPS + 1, COUNT), bool)
        memory = ActingState(states[0].clone(), states, ended[0], ended[1:], ended[1:])
    actor = agent.actor(noise, actions, memory)
    played = [actor.act(t, rows[t], None if pixels is None else pixels[t]).copy() for t in range(STEPS)]
    for one, other in zip(played, selected(agent, True, np.float32), strict=True):
        np.testing.assert_array_equal(one, other)


def test_many_threads_may_use_one_policy() -> None:
    agent = agent_of("squashed", True)
    rows = stream(6, "test").normal(size=(200, 1, agent.spaces.observation_size))
    expected = [PolicyRunner(agent).act(row) for row in rows]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda row: PolicyRunner(agent).act(row), rows))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("case", ["squashed", "shared minGRU", "images and memory"])
def test_copy_of_an_agent_has_kernels_of_its_own(case: str) -> None:
    agent = agent_of(case, True)
    before = selected(agent, True)
    copied = deepcopy(agent)
    for parameter in agent.policy.parameters():
        parameter.data.zero_()
    np.testing.assert_array_equal(selected(copied, True), before)
    assert not np.array_equal(selected(agent, True), before)

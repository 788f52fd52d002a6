"""Tests of action masks: forbidden actions have no probability, in acting and in training."""

import numpy as np
import pytest
import torch
from tests.watched import choose_actions, evaluate_rows

from lockstep.algorithm.agent import Agent
from lockstep.envs.spaces import Spaces
from lockstep.models.settings import PolicyConfig
from lockstep.randomness import stream

FEATURES, CHOICES, STEPS, COUNT = 3, (3, 2), 6, 5
BOUNDS = (np.float32([-1.0]), np.float32([1.0]))


def agent_of(choices: tuple[int, ...], continuous: bool, core: str = "none", shared: bool = False) -> Agent:
    bounds = BOUNDS if continuous else (np.zeros(0, np.float32),) * 2
    spaces = Spaces(FEATURES + sum(choices), choices, *bounds, mask_size=sum(choices))
    policy = PolicyConfig(hidden=(8,), core=core, core_size=4, shared=shared, normalize_observations=True)
    agent = Agent(spaces, policy, False, 1, torch.float64)
    agent.flat.buffer += 0.5 * torch.from_numpy(stream(1, "moved").standard_normal(len(agent.flat.buffer)))
    return agent


def rows_of(choices: tuple[int, ...]) -> np.ndarray:
    """Return observations whose masks allow at least one option of each choice."""
    generator = stream(2, "rows")
    masks = []
    for count in choices:
        mask = generator.random((STEPS + 1, COUNT, count)) < 0.4
        mask[..., 0] |= ~mask.any(-1)
        masks.append(mask)
    return np.concatenate([generator.standard_normal((STEPS + 1, COUNT, FEATURES)), *masks], -1)


@pytest.mark.parametrize("core", ["none", "lstm"])
@pytest.mark.parametrize(("choices", "continuous"), [((4,), False), (CHOICES, False), (CHOICES, True)])
def test_forbidden_actions_are_never_chosen(choices: tuple[int, ...], continuous: bool, core: str) -> None:
    agent, rows = agent_of(choices, continuous, core), rows_of(choices)
    for trial in range(20):
        for row in rows:
            for generator in (None, stream(trial, "drawn")):
                actions = choose_actions(agent, row, generator).reshape(COUNT, -1)
                start = FEATURES
                for column, count in enumerate(choices):
                    allowed = row[np.arange(COUNT), start + actions[:, column].astype(int)]
                    assert (allowed == 1).all()
                    start += count


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kernels", [False, True])
def test_masks_are_equal_in_numpy_and_pytorch(shared: bool, kernels: bool) -> None:
    agent, rows = agent_of(CHOICES, True, shared=shared), rows_of(CHOICES)
    if kernels:
        agent.use_kernels()
    noise = agent.distribution.noise(stream(3, "noise"), STEPS, COUNT)
    actions = np.zeros((STEPS, COUNT, len(CHOICES) + 1))
    actor = agent.actor(noise, actions)
    for t in range(STEPS):
        actor.act(t, rows[t])
    parameters, values = agent.policy(torch.from_numpy(rows).flatten(0, 1))
    expected = agent.distribution.log_prob(parameters[: STEPS * COUNT], torch.from_numpy(actions).flatten(0, 1))
    assert torch.allclose(actor.log_probs().flatten(), expected, rtol=0, atol=1e-12)
    evaluated = evaluate_rows(agent, torch.from_numpy(rows), torch.from_numpy(actions))
    assert torch.allclose(evaluated[0].flatten(), values, rtol=0, atol=1e-12)
    assert torch.allclose(evaluated[1].flatten(), expected, rtol=0, atol=1e-12)


def test_forbidden_actions_have_no_probability_no_entropy_and_no_gradient() -> None:
    agent = agent_of((4,), False)
    row = torch.from_numpy(np.float64([[0.3, -1, 2, 1, 0, 1, 0]]))
    parameters, _ = agent.policy(row)
    log_probs, entropy = agent.distribution.log_prob_and_entropy(parameters, torch.tensor([0]))
    allowed = torch.distributions.Categorical(logits=parameters[:, [0, 2]])
    assert torch.allclose(log_probs, allowed.log_prob(torch.tensor([0])))
    assert torch.allclose(entropy, allowed.entropy())
    (log_probs + entropy).sum().backward()
    gradient = agent.policy.policy_head.weight.grad
    assert (gradient[[1, 3]] == 0).all()
    assert (gradient[[0, 2]] != 0).any()


def test_a_mask_is_not_normalized() -> None:
    agent, rows = agent_of((4,), False), torch.from_numpy(rows_of((4,))).flatten(0, 1)
    agent.observation_statistics.merge(
        agent.observation_statistics.sums(rows[:, :FEATURES] * 50, torch.ones(len(rows), dtype=torch.bool)),
        agent.observation_statistics.mean,
    )
    agent.refresh()
    normalized = agent.normalize(rows)
    assert torch.equal(normalized[:, FEATURES:], rows[:, FEATURES:])
    assert not torch.equal(normalized[:, :FEATURES], rows[:, :FEATURES])

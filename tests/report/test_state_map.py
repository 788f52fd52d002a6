"""Maps of the actions and values of an agent over two components of its observations."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.policy_runner import PolicyRunner
from lockstep.envs.spaces import describe
from lockstep.models.settings import PolicyConfig
from lockstep.report.state_map import map_states, visited_states

PAIR = Box(np.float32([-1, -2]), np.float32([1, np.inf]))
FOUR = Box(-np.inf, np.inf, (4,))
FORCE = Box(-1, 1, (2,))
VISITED = np.random.default_rng(2).normal([0, 1, 2, 3], [1, 2, 3, 4], (300, 4))


def make_agent(observation_space: Space, action_space: Space, **settings: object) -> Agent:
    config = PolicyConfig(hidden=(8,), **settings)
    agent = Agent(describe(observation_space, action_space, "Task"), config, False, 1, torch.float64)
    if agent.observation_statistics is not None:
        rows = torch.from_numpy(np.random.default_rng(1).normal(3, 2, (50, agent.spaces.feature_size)))
        statistics = agent.observation_statistics
        statistics.merge(statistics.sums(rows, torch.ones(50, dtype=torch.bool)), statistics.mean)
        agent.refresh()
    return agent


@pytest.mark.parametrize("action_space", [Discrete(3), FORCE, MultiDiscrete([2, 3])])
@pytest.mark.parametrize("normalized", [True, False])
def test_actions_and_values_equal_those_of_the_agent(action_space: Space, normalized: bool) -> None:
    agent = make_agent(FOUR, action_space, normalize_observations=normalized)
    state_map = map_states(agent, FOUR, (3, 1), "Task", VISITED, cells=5)
    assert state_map.values.shape == (5, 5)
    assert state_map.actions.shape == (max(1, len(action_space.shape) and action_space.shape[0]), 5, 5)
    assert [table.shape for table in state_map.probabilities] == [(count, 5, 5) for count in agent.spaces.choices]
    for y in range(5):
        for x in range(5):
            row = state_map.fixed.copy()
            row[3], row[1] = state_map.x[x], state_map.y[y]
            assert state_map.values[y, x] == pytest.approx(agent.values(torch.from_numpy(row[None])).item(), abs=1e-12)
            action = PolicyRunner(agent).act(row[None]).reshape(-1)
            assert state_map.actions[:, y, x] == pytest.approx(action, abs=1e-12)
            if agent.spaces.choices:
                normalized_row = agent.normalize(torch.from_numpy(row[None]))
                logits = agent.policy(normalized_row)[0][0].split(agent.spaces.choices)
                for table, part in zip(state_map.probabilities, logits, strict=True):
                    assert table[:, y, x] == pytest.approx(part.softmax(-1).tolist(), abs=1e-12)


def test_axes_cover_the_visited_states_within_the_bounds() -> None:
    visited = np.stack([np.linspace(-1, 1, 101), np.linspace(1, 5, 101)], axis=1)
    visited[50] = 0, 100  # an outlier
    state_map = map_states(make_agent(PAIR, FORCE), PAIR, None, "Task", visited, cells=3)
    assert state_map.axes == (0, 1)
    assert state_map.x.tolist() == [-1, 0, 1]
    low, high = np.percentile(visited[:, 1], (1, 99))
    assert state_map.y[[0, 2]] == pytest.approx([low - (high - low) / 4, high + (high - low) / 4])
    assert state_map.visited.tolist() == visited.tolist()


def test_the_other_components_are_at_their_medians() -> None:
    visited = VISITED.copy()
    visited[:, 1] = 7.0  # it never changes
    state_map = map_states(make_agent(FOUR, FORCE), FOUR, (0, 1), "Task", visited, cells=3)
    assert state_map.fixed.tolist() == np.median(visited, axis=0).tolist()
    assert state_map.y.tolist() == [0, 7, 14]


@pytest.mark.parametrize("action_space", [Discrete(3), FORCE, Box(-np.inf, np.inf, (2,))])
def test_the_components_with_the_largest_effect_are_the_axes(action_space: Space) -> None:
    agent = make_agent(FOUR, action_space)
    with torch.no_grad():
        first = agent.policy.trunk[0].weight
        first[:, 0] = 0  # without effect
        first[:, 2] *= 0.01
        agent.policy.policy_head.weight *= 100
    assert map_states(agent, FOUR, None, "Task", VISITED, cells=3).axes == (1, 3)
    constant = VISITED.copy()
    constant[:, 3] = 3.0  # its effect shows nowhere
    assert map_states(agent, FOUR, None, "Task", constant, cells=3).axes == (1, 2)
    flagged = VISITED.copy()
    flagged[:, 3] = VISITED[:, 3] > 3  # a flag
    assert map_states(agent, FOUR, None, "Task", flagged, cells=3).axes == (1, 2)
    flagged[:, :2] = 0
    assert map_states(agent, FOUR, None, "Task", flagged, cells=3).axes == (2, 3)


def test_the_memory_is_in_its_initial_state() -> None:
    agent = make_agent(PAIR, Discrete(2), core="lstm", core_size=4)
    state_map = map_states(agent, PAIR, None, "Task", VISITED[:, :2], cells=3)
    row = np.array([[state_map.x[2], state_map.y[0]]])
    runner = PolicyRunner(agent)
    assert state_map.values[0, 2] == pytest.approx(runner.values(row).item(), abs=1e-12)
    runner.act(row)
    assert state_map.values[0, 2] != pytest.approx(runner.values(row).item(), abs=1e-6)


def test_action_masks_allow_every_action() -> None:
    space = Dict({"action_mask": Box(0, 1, (3,), np.int8), "place": PAIR})
    state_map = map_states(make_agent(space, Discrete(3)), space, None, "Task", VISITED[:, :2], cells=4)
    assert set(state_map.actions.reshape(-1)) <= {0, 1, 2}
    assert state_map.probabilities[0].min() > 0.01


def test_visited_states_are_those_of_sampled_episodes() -> None:
    env = gym.make("CartPole-v1")
    agent = make_agent(env.observation_space, env.action_space)
    visited = visited_states(agent, env, [5, 6], np.random.default_rng(1))
    firsts = [env.reset(seed=seed)[0].tolist() for seed in (5, 6)]
    assert [row for row in visited.tolist() if row in firsts] == firsts
    assert visited[0].tolist() == firsts[0]
    assert (visited == visited_states(agent, env, [5, 6], np.random.default_rng(1))).all()
    env = gym.make("MountainCar-v0")
    assert len(visited_states(make_agent(env.observation_space, env.action_space), env, range(20), np.random.default_rng(1))) == 2000  # fmt: skip


@pytest.mark.parametrize(
    ("space", "axes", "line"),
    [
        (Box(0, 1, (1,)), None, "env.id is 'Task': observations have 1 component"),
        (FOUR, (0, 4), "--axes is 0 4: it must be two different components of 0 observation"),
        (FOUR, (2, 2), "--axes is 2 2: it must be two different components of"),
    ],
)
def test_unsupported_spaces_and_axes_are_rejected(space: Space, axes: tuple[int, int] | None, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        map_states(make_agent(space, FORCE), space, axes, "Task", VISITED[:, : space.shape[0]])

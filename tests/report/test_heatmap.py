"""Heat maps show the actions and values of the agent."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Space

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.policy_runner import PolicyRunner
from lockstep.envs.spaces import describe
from lockstep.models.settings import PolicyConfig
from lockstep.report.heatmap import draw_map, map_states

PAIR = Box(np.float32([-1, -2]), np.float32([1, np.inf]))
FOUR = Box(-np.inf, np.inf, (4,))
FORCE = Box(-1, 1, (2,))


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
    state_map = map_states(agent, FOUR, (3, 1), "Task", cells=5)
    assert state_map.values.shape == (5, 5)
    assert state_map.actions.shape == (max(1, len(action_space.shape) and action_space.shape[0]), 5, 5)
    for y in range(5):
        for x in range(5):
            row = state_map.fixed.copy()
            row[3], row[1] = state_map.x[x], state_map.y[y]
            assert state_map.values[y, x] == pytest.approx(agent.values(torch.from_numpy(row[None])).item(), abs=1e-12)
            assert state_map.actions[:, y, x] == pytest.approx(
                PolicyRunner(agent).act(row[None]).reshape(-1), abs=1e-12
            )


def test_grid_covers_the_bounds_or_the_observed_range() -> None:
    agent = make_agent(PAIR, FORCE, normalize_observations=True)
    assert agent.observation_statistics is not None
    mean, std = (part.numpy()[1] for part in (agent.observation_statistics.mean, agent.observation_statistics.std))
    state_map = map_states(agent, PAIR, None, "Task", cells=3)
    assert state_map.x.tolist() == [-1, 0, 1]
    assert state_map.y[[0, 2]] == pytest.approx([max(-2, mean - 3 * std), mean + 3 * std])
    assert state_map.fixed[0] == 1  # the mean is beyond the bound


def test_without_running_statistics_the_other_components_are_0() -> None:
    state_map = map_states(make_agent(FOUR, FORCE), FOUR, (0, 2), "Task", cells=3)
    assert (state_map.x.tolist(), state_map.fixed.tolist()) == ([-3, 0, 3], [0, 0, 0, 0])


def test_the_memory_is_in_its_initial_state() -> None:
    agent = make_agent(PAIR, Discrete(2), core="lstm", core_size=4)
    state_map = map_states(agent, PAIR, None, "Task", cells=3)
    row = np.array([[state_map.x[2], state_map.y[0]]])
    runner = PolicyRunner(agent)
    assert state_map.values[0, 2] == pytest.approx(runner.values(row).item(), abs=1e-12)
    runner.act(row)
    assert state_map.values[0, 2] != pytest.approx(runner.values(row).item(), abs=1e-6)


def test_action_masks_allow_every_action() -> None:
    space = Dict({"action_mask": Box(0, 1, (3,), np.int8), "place": PAIR})
    state_map = map_states(make_agent(space, Discrete(3)), space, None, "Task", cells=4)
    assert set(state_map.actions.reshape(-1)) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("space", "axes", "line"),
    [
        (Box(0, 255, (36, 36), np.uint8), None, "env.id is 'Task': observations contain images"),
        (Box(0, 1, (1,)), None, "env.id is 'Task': observations have 1 component"),
        (FOUR, None, "--axes is missing: observations of Task have 4 components, choose two: 0 observation"),
        (FOUR, (0, 4), "--axes is 0 4: it must be two different components of 0 observation"),
        (FOUR, (2, 2), "--axes is 2 2: it must be two different components of"),
    ],
)
def test_unsupported_spaces_and_axes_are_rejected(space: Space, axes: tuple[int, int] | None, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        map_states(make_agent(space, FORCE), space, axes, "Task")


@pytest.mark.parametrize("action_space", [Discrete(2), FORCE, Discrete(20), Box(-np.inf, np.inf, (1,))])
def test_the_figure_has_labels(action_space: Space, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    agent = make_agent(FOUR, action_space)
    state_map = map_states(agent, FOUR, (0, 3), "CartPole-v1", cells=9)
    draw_map(state_map, agent, (FOUR, action_space), "CartPole-v1", tmp_path / "a.svg", scaled=False)
    text = (tmp_path / "a.svg").read_text()
    for words in ("cart position", "pole velocity (rad/s)", "value (discounted return)", "pole angle (rad) = 0"):
        assert words in text
    assert ("most probable action" if isinstance(action_space, Discrete) else "mean action") in text
    assert ("push left" in text) == (action_space == Discrete(2))


def test_all_panels_have_tick_labels(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    action_space = Box(-1, 1, (4,))
    agent = make_agent(FOUR, action_space)
    draw_map(
        map_states(agent, FOUR, (0, 3), "Task", cells=9), agent, (FOUR, action_space), "Task", tmp_path / "a.svg", False
    )
    axes = re.split(r'id="matplotlib\.axis_\d+"', (tmp_path / "a.svg").read_text())[1:]
    ticked = [part for part in axes if re.search(r'id="[xy]tick_\d+"', part)]
    assert len(ticked) == 5 * 3  # two axes and a color bar for each of four actions and the value
    assert all("<text" in part for part in ticked)

"""Heat maps: their numbers are the agent's."""

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


def agent_of(seen: Space, acts: Space, **settings: object) -> Agent:
    config = PolicyConfig(hidden=(8,), **settings)
    agent = Agent(describe(seen, acts, "Task"), config, False, 1, torch.float64)
    if agent.observation_moments is not None:
        rows = torch.from_numpy(np.random.default_rng(1).normal(3, 2, (50, agent.spaces.feature_size)))
        moments = agent.observation_moments
        moments.merge(moments.sums(rows, torch.ones(50, dtype=torch.bool)), moments.mean)
        agent.refresh()
    return agent


@pytest.mark.parametrize("acts", [Discrete(3), FORCE, MultiDiscrete([2, 3])])
@pytest.mark.parametrize("normalized", [True, False])
def test_actions_and_values_are_the_agents(acts: Space, normalized: bool) -> None:
    agent = agent_of(FOUR, acts, normalize_observations=normalized)
    found = map_states(agent, FOUR, (3, 1), "Task", cells=5)
    assert found.values.shape == (5, 5)
    assert found.actions.shape == (max(1, len(acts.shape) and acts.shape[0]), 5, 5)
    for up in range(5):
        for right in range(5):
            row = found.held.copy()
            row[3], row[1] = found.right[right], found.up[up]
            assert found.values[up, right] == pytest.approx(agent.values(torch.from_numpy(row[None])).item(), abs=1e-12)
            assert found.actions[:, up, right] == pytest.approx(
                PolicyRunner(agent).act(row[None]).reshape(-1), abs=1e-12
            )


def test_the_grid_goes_over_bounds_else_over_what_was_seen() -> None:
    agent = agent_of(PAIR, FORCE, normalize_observations=True)
    assert agent.observation_moments is not None
    mean, std = (part.numpy()[1] for part in (agent.observation_moments.mean, agent.observation_moments.std))
    found = map_states(agent, PAIR, None, "Task", cells=3)
    assert found.right.tolist() == [-1, 0, 1]
    assert found.up[[0, 2]] == pytest.approx([max(-2, mean - 3 * std), mean + 3 * std])
    assert found.held[0] == 1  # the mean is beyond the bound


def test_without_moments_others_are_0() -> None:
    found = map_states(agent_of(FOUR, FORCE), FOUR, (0, 2), "Task", cells=3)
    assert (found.right.tolist(), found.held.tolist()) == ([-3, 0, 3], [0, 0, 0, 0])


def test_memory_is_that_of_the_beginning() -> None:
    agent = agent_of(PAIR, Discrete(2), core="lstm", core_size=4)
    found = map_states(agent, PAIR, None, "Task", cells=3)
    row = np.array([[found.right[2], found.up[0]]])
    pilot = PolicyRunner(agent)
    assert found.values[0, 2] == pytest.approx(pilot.values(row).item(), abs=1e-12)
    pilot.act(row)
    assert found.values[0, 2] != pytest.approx(pilot.values(row).item(), abs=1e-6)


def test_masks_allow_everything() -> None:
    seen = Dict({"action_mask": Box(0, 1, (3,), np.int8), "place": PAIR})
    found = map_states(agent_of(seen, Discrete(3)), seen, None, "Task", cells=4)
    assert set(found.actions.reshape(-1)) <= {0, 1, 2}


@pytest.mark.parametrize(
    ("seen", "axes", "line"),
    [
        (Box(0, 255, (36, 36), np.uint8), None, "env.id is 'Task': it gives images"),
        (Box(0, 1, (1,)), None, "env.id is 'Task': its observations have 1 number"),
        (FOUR, None, "--axes is missing: Task has 4 numbers, name two of them: 0 observation"),
        (FOUR, (0, 4), "--axes is 0 4: it must be two different ones of 0 observation"),
        (FOUR, (2, 2), "--axes is 2 2: it must be two different ones of"),
    ],
)
def test_what_cant_be_mapped(seen: Space, axes: tuple[int, int] | None, line: str) -> None:
    with pytest.raises(ValueError, match=line):
        map_states(agent_of(seen, FORCE), seen, axes, "Task")


@pytest.mark.parametrize("acts", [Discrete(2), FORCE, Discrete(20), Box(-np.inf, np.inf, (1,))])
def test_the_picture_names_what_it_shows(acts: Space, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    agent = agent_of(FOUR, acts)
    found = map_states(agent, FOUR, (0, 3), "CartPole-v1", cells=9)
    draw_map(found, agent, (FOUR, acts), "CartPole-v1", tmp_path / "a.svg", scaled=False)
    text = (tmp_path / "a.svg").read_text()
    for words in ("cart position", "pole velocity (rad/s)", "value (discounted return)", "pole angle (rad) = 0"):
        assert words in text
    assert ("most probable action" if isinstance(acts, Discrete) else "mean action") in text
    assert ("push left" in text) == (acts == Discrete(2))


def test_all_panels_have_tick_labels(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    acts = Box(-1, 1, (4,))
    agent = agent_of(FOUR, acts)
    draw_map(map_states(agent, FOUR, (0, 3), "Task", cells=9), agent, (FOUR, acts), "Task", tmp_path / "a.svg", False)
    axes = re.split(r'id="matplotlib\.axis_\d+"', (tmp_path / "a.svg").read_text())[1:]
    ticked = [part for part in axes if re.search(r'id="[xy]tick_\d+"', part)]
    assert len(ticked) == 5 * 3  # two axes and a colour bar for each of four actions and the value
    assert all("<text" in part for part in ticked)

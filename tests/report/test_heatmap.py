"""Heat maps show the actions, probabilities and values of a map, and where the policy has been."""

import re
from pathlib import Path

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from tests.report.test_state_map import FORCE, FOUR, VISITED, make_agent

from lockstep.report.heatmap import draw_map
from lockstep.report.state_map import map_states


def draw(action_space: Space, path: Path, env_id: str = "CartPole-v1") -> str:
    pytest.importorskip("matplotlib")
    agent = make_agent(FOUR, action_space)
    state_map = map_states(agent, FOUR, (0, 3), env_id, VISITED, cells=9)
    draw_map(state_map, agent, (FOUR, action_space), env_id, path, False, "run 7")
    return path.read_text()


@pytest.mark.parametrize(
    ("action_space", "panels"),
    [
        (Discrete(2), ["probability of “push right”"]),
        (Discrete(3), ["most probable action", *(f"probability of action = {option}" for option in range(3))]),
        (Discrete(20), ["most probable action", "probability of most probable action"]),
        (MultiDiscrete([2, 3]), ["probability of action[0] = 1", "most probable action[1]", "probability of most probable action[1]"]),
        (FORCE, ["mean action[0]", "mean action[1]"]),
        (Box(-np.inf, np.inf, (1,)), ["mean action"]),
    ],
)  # fmt: skip
def test_the_figure_has_labels(action_space: Space, panels: list[str], tmp_path: Path) -> None:
    text = draw(action_space, tmp_path / "a.svg")
    for words in (
        "run 7: policy over cart position and pole velocity (rad/s)",
        "dots: visited states; at the medians of visited states: cart velocity = ",
        "value (discounted return)",
        *panels,
    ):
        assert words in text
    assert len(re.findall("probability of", text)) == sum("probability of" in words for words in panels)


def test_all_panels_have_tick_labels_and_visited_states(tmp_path: Path) -> None:
    text = draw(Box(-1, 1, (4,)), tmp_path / "a.svg", "Task")
    axes = re.split(r'id="matplotlib\.axis_\d+"', text)[1:]
    ticked = [part for part in axes if re.search(r'id="[xy]tick_\d+"', part)]
    assert len(ticked) == 5 * 3  # two axes and a color bar for each of four actions and the value
    assert all("<text" in part for part in ticked)
    assert len(re.findall(r'id="PathCollection_\d+"', text)) == 5

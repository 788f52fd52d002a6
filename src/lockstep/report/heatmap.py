"""Heat maps of the actions and values of a policy over two components of its observations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatdim
from numpy.typing import NDArray

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.policy_runner import PolicyRunner
from lockstep.distributions.gaussian import Gaussian
from lockstep.envs.spaces import feature_leaves, leaves
from lockstep.report.names import action_names, observation_names, option_names
from lockstep.report.style import COLORS, UNBOUNDED, saved_figure

__all__ = ["StateMap", "draw_map", "map_states"]

_CELLS = 121
"""Cells along each side of the map."""
_DEVIATIONS = 3.0
_NAMED = 4
"""Largest number of fixed components whose values are shown one by one."""

Array = NDArray[Any]


@dataclass(frozen=True)
class StateMap:
    """Actions and values of an agent on a grid of `N` by `N` observations."""

    axes: tuple[int, int]
    """Components of the observation on the horizontal and the vertical axis."""
    x: Array
    """`[N]`, values of the component on the horizontal axis."""
    y: Array
    """`[N]`, values of the component on the vertical axis."""
    actions: Array
    """`[A, N, N]`, indexed by component, y and x: the most probable ones (means of normal distributions), as passed to the environment."""
    values: Array
    """`[N, N]`, indexed by y and x."""
    fixed: Array
    """`[O]`, values of all components; those of the two axes are not used."""


def map_states(
    agent: Agent, observation_space: Space[Any], axes: Sequence[int] | None, env_id: str, cells: int = _CELLS
) -> StateMap:
    """Evaluate an agent at `cells` by `cells` observations. A recurrent agent is in its initial state, and action masks allow every action.

    An axis covers the bounds of the observation space. Without bounds it covers three standard deviations around the running mean, or -3 to
    3 if the agent has no running statistics. All other components are at their running means, or at 0, within their bounds.

    Raises ValueError if the observations contain images or fewer than two components, if `axes` are invalid, or if they are None and there
    are more than two components. The message is one line.
    """
    spaces = agent.spaces
    names = observation_names(env_id, observation_space)
    chosen = _axes(axes, names, bool(spaces.images), env_id)
    low, high, mean = _ranges(agent, observation_space)
    x, y = (np.linspace(low[component], high[component], cells) for component in chosen)
    base = np.concatenate([mean, np.ones(spaces.mask_size)])
    rows = np.tile(base, (cells * cells, 1))
    rows[:, chosen[0]], rows[:, chosen[1]] = np.tile(x, cells), np.repeat(y, cells)
    runner = PolicyRunner(agent, len(rows))
    values = runner.values(rows).reshape(cells, cells)
    actions = np.asarray(runner.act(rows)).reshape(cells, cells, -1)
    return StateMap(chosen, x, y, np.moveaxis(actions, -1, 0), values, mean)


def draw_map(
    state_map: StateMap, agent: Agent, spaces: tuple[Space[Any], Space[Any]], env_id: str, path: Path, scaled: bool
) -> None:
    """Draw one panel per action component of a map, the result of `map_states`, and one for the value.

    `spaces` are observation space and action space of the environment; `env_id` gives the names of the components. `scaled` is True if the
    agent was trained on scaled rewards, so that its values are returns of scaled rewards. Raises ValueError as `saved_figure` does.
    """
    count = len(state_map.actions) + 1
    columns = min(count, 4)
    rows = math.ceil(count / columns)
    names = observation_names(env_id, spaces[0])
    with saved_figure(path, 1.2 + 4.6 * columns, 4.2 * rows + 0.4) as (matplotlib, figure):
        panels = figure.subplots(rows, columns, squeeze=False)
        for axes in panels.flat[count:]:
            axes.set_axis_off()
        for component, (axes, name) in enumerate(zip(panels.flat, _components(env_id, spaces[1]), strict=False)):
            _show_action(matplotlib, figure, axes, state_map, agent, component, name, env_id)
        last = panels.flat[count - 1]
        image = _show(last, state_map, state_map.values, cmap="cividis")
        figure.colorbar(image, ax=last)
        last.set_title("value (of scaled rewards)" if scaled else "value (discounted return)", fontsize=12)
        for axes in panels.flat[:count]:
            axes.grid(visible=False)
        for axes in panels.flat[max(0, count - columns) : count]:
            axes.set_xlabel(names[state_map.axes[0]])
        for axes in panels[:, 0]:
            axes.set_ylabel(names[state_map.axes[1]])
        if len(names) > 2 or agent.state_size:
            figure.supxlabel(_fixed_text(state_map, names, agent), fontsize=11, color="#333333")


def _axes(axes: Sequence[int] | None, names: Sequence[str], images: bool, env_id: str) -> tuple[int, int]:
    if images:
        raise ValueError(
            f"env.id is {env_id!r}: observations contain images; heat maps need observations without images"
        )
    if len(names) < 2:
        raise ValueError(f"env.id is {env_id!r}: observations have 1 component; a heat map needs at least 2")
    listed = ", ".join(f"{index} {name}" for index, name in enumerate(names[:20])) + ", …" * (len(names) > 20)
    if axes is None:
        if len(names) > 2:
            raise ValueError(
                f"--axes is missing: observations of {env_id} have {len(names)} components, choose two: {listed}"
            )
        return 0, 1
    first, second = axes
    if not (0 <= first < len(names) and 0 <= second < len(names)) or first == second:
        raise ValueError(f"--axes is {first} {second}: it must be two different components of {listed}")
    return first, second


def _ranges(agent: Agent, space: Space[Any]) -> tuple[Array, Array, Array]:
    """Return low, high and mean `[O]` of every observation component, without the action mask."""
    statistics = agent.observation_statistics
    size = agent.spaces.feature_size
    mean = np.zeros(size) if statistics is None else statistics.mean.numpy()
    deviation = np.ones(size) if statistics is None else statistics.std.numpy()
    low, high = mean - _DEVIATIONS * deviation, mean + _DEVIATIONS * deviation
    begin = 0
    for _, leaf in feature_leaves(space):
        is_box = isinstance(leaf, Box)
        count = math.prod(leaf.shape) if is_box else flatdim(leaf)
        lower = leaf.low.reshape(-1).astype(np.float64) if is_box else np.zeros(count)
        upper = leaf.high.reshape(-1).astype(np.float64) if is_box else np.ones(count)
        part = slice(begin, begin := begin + count)
        bounded = (abs(lower) < UNBOUNDED) & (abs(upper) < UNBOUNDED)
        low[part] = np.where(bounded, lower, np.maximum(low[part], lower))
        high[part] = np.where(bounded, upper, np.minimum(high[part], upper))
    return low, high, np.clip(mean, low, high)


def _components(env_id: str, space: Space[Any]) -> list[str]:
    """Return the names of the action components in the order of action rows: discrete ones first, then continuous ones."""
    names = action_names(env_id, space)
    continuous = [isinstance(leaf, Box) for _, leaf in leaves(space) for _ in range(math.prod(leaf.shape))]
    return [name for kind in (False, True) for name, is_box in zip(names, continuous, strict=True) if is_box is kind]


def _show(axes: Any, state_map: StateMap, table: Array, **options: Any) -> Any:
    half = [(values[1] - values[0]) / 2 for values in (state_map.x, state_map.y)]
    extent = (state_map.x[0] - half[0], state_map.x[-1] + half[0], state_map.y[0] - half[1], state_map.y[-1] + half[1])
    return axes.imshow(table, origin="lower", extent=extent, aspect="auto", interpolation="nearest", **options)


def _show_action(
    matplotlib: ModuleType,
    figure: Any,
    axes: Any,
    state_map: StateMap,
    agent: Agent,
    component: int,
    name: str,
    env_id: str,
) -> None:
    choices, table = agent.spaces.choices, state_map.actions[component]
    if component < len(choices):
        count = choices[component]
        many = matplotlib.colormaps["viridis"].resampled(count) if count > len(COLORS) else None
        colors = many or matplotlib.colors.ListedColormap(COLORS[:count])
        image = _show(axes, state_map, table, cmap=colors, vmin=-0.5, vmax=count - 0.5)
        bar = figure.colorbar(image, ax=axes)
        axes.set_title(f"most probable {name}", fontsize=12)
        if count <= 18:
            bar.set_ticks(range(count))
            is_discrete_space = count == agent.spaces.discrete_actions
            bar.set_ticklabels(option_names(env_id, count) if is_discrete_space else list(map(str, range(count))))
        bar.ax.tick_params(length=0)
        return
    index = component - len(choices)
    low, high = float(agent.spaces.action_low[index]), float(agent.spaces.action_high[index])
    if not (math.isfinite(low) and math.isfinite(high)):
        high = float(abs(table).max()) or 1.0
        low = -high
    image = _show(axes, state_map, table, cmap="PuOr" if low == -high else "viridis", vmin=low, vmax=high)
    figure.colorbar(image, ax=axes)
    gaussian = isinstance(agent.continuous, Gaussian)
    axes.set_title(f"{'mean' if gaussian else 'most probable'} {name}", fontsize=12)


def _fixed_text(state_map: StateMap, names: Sequence[str], agent: Agent) -> str:
    """Return the line below the figure: the values of the components that are on neither axis."""
    others = [component for component in range(len(names)) if component not in state_map.axes]
    kind = "at 0" if agent.observation_statistics is None else "at their means"
    parts = [f"the other {len(others)} components {kind}"] if others else []
    if 0 < len(others) <= _NAMED:
        parts = [", ".join(f"{names[component]} = {state_map.fixed[component]:.3g}" for component in others)]
    if agent.state_size:
        parts.append("memory as at the beginning of an episode")
    return "; ".join(parts)

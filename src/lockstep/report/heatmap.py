"""Figure of the actions and values of a policy over two components of its observations."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from numpy.typing import NDArray

from lockstep.algorithm.agent import Agent
from lockstep.distributions.gaussian import Gaussian
from lockstep.envs.spaces import leaves
from lockstep.report.names import action_names, observation_names, option_names
from lockstep.report.state_map import StateMap
from lockstep.report.style import COLORS, saved_figure

__all__ = ["draw_map"]

_NAMED = 4
"""Largest number of fixed components whose values are shown one by one."""
_OPTIONS = 6
"""Largest number of options of a discrete action that have a panel each."""
_COLUMNS = 3
_DOTS = 500
"""Largest number of visited states that are drawn."""

Array = NDArray[Any]
_Panel = Callable[[ModuleType, Any, Any], None]
"""Function of matplotlib, the figure and the axes that draws a panel."""


def draw_map(
    state_map: StateMap,
    agent: Agent,
    spaces: tuple[Space[Any], Space[Any]],
    env_id: str,
    path: Path,
    scaled: bool,
    title: str,
) -> None:
    """Draw the panels of a map, the result of `map_states`: actions, probabilities of discrete ones, and the value.

    Dots are visited states. `spaces` are observation space and action space of the environment; `env_id` gives the
    names of the components. `scaled` is True if the agent was trained on scaled rewards, so that its values are returns
    of scaled rewards. `title` names the run. Raises ValueError as `saved_figure` does.
    """
    panels = list(_panels(state_map, agent, spaces[1], env_id, scaled))
    columns = min(len(panels), _COLUMNS if len(panels) != 4 else 2)
    rows = math.ceil(len(panels) / columns)
    names = observation_names(env_id, spaces[0])
    with saved_figure(path, 1.2 + 4.6 * columns, 4.0 * rows + 0.9) as (matplotlib, figure):
        grid = figure.subplots(rows, columns, squeeze=False)
        for axes in grid.flat[len(panels) :]:
            axes.set_axis_off()
        for panel, axes in zip(panels, grid.flat, strict=False):
            panel(matplotlib, figure, axes)
            _show_visited(axes, state_map)
            axes.grid(visible=False)
        for axes in grid.flat[max(0, len(panels) - columns) : len(panels)]:
            axes.set_xlabel(names[state_map.axes[0]])
        for axes in grid[:, 0]:
            axes.set_ylabel(names[state_map.axes[1]])
        first, second = (names[component] for component in state_map.axes)
        figure.suptitle(f"{title}: policy over {first} and {second}", fontsize=13, wrap=True)
        figure.supxlabel(_note(state_map, names, agent), fontsize=11, color="#333333", wrap=True)


def _panels(state_map: StateMap, agent: Agent, action_space: Space[Any], env_id: str, scaled: bool) -> Iterator[_Panel]:
    names, choices = _components(env_id, action_space), agent.spaces.choices
    for component, name in enumerate(names[: len(choices)]):
        yield from _discrete_panels(state_map, agent, component, name, env_id)
    for index, name in enumerate(names[len(choices) :]):
        kind = "mean" if isinstance(agent.continuous, Gaussian) else "most probable"
        bounds = float(agent.spaces.action_low[index]), float(agent.spaces.action_high[index])
        yield partial(_show_continuous, state_map, state_map.actions[len(choices) + index], bounds, f"{kind} {name}")
    title = "value (of scaled rewards)" if scaled else "value (discounted return)"
    yield partial(_show_value, state_map, title)


def _discrete_panels(state_map: StateMap, agent: Agent, component: int, name: str, env_id: str) -> Iterator[_Panel]:
    count, single = agent.spaces.choices[component], agent.spaces.discrete_actions is not None
    options = option_names(env_id, count) if single else list(map(str, range(count)))
    probabilities = state_map.probabilities[component]
    titles = [f"probability of {_option(name, option, single)}" for option in options]
    if count == 2:  # the other option has the rest; white is where both are equally probable
        yield partial(_show_probability, state_map, probabilities[1], titles[1], "PuOr_r")
        return
    yield partial(_show_options, state_map, state_map.actions[component], options, f"most probable {name}")
    if single and count <= _OPTIONS:
        for table, title in zip(probabilities, titles, strict=True):
            yield partial(_show_probability, state_map, table, title, "viridis")
    else:
        title = f"probability of most probable {name}"
        yield partial(_show_probability, state_map, probabilities.max(axis=0), title, "viridis")


def _option(name: str, option: str, single: bool) -> str:
    """Return the label of one option: its own name, or the name of the action and its number."""
    return f"“{option}”" if single and not option.isdecimal() else f"{name} = {option}"


def _components(env_id: str, space: Space[Any]) -> list[str]:
    """Return the names of the action components in the order of action rows: discrete ones first, then continuous ones."""
    names = action_names(env_id, space)
    continuous = [isinstance(leaf, Box) for _, leaf in leaves(space) for _ in range(math.prod(leaf.shape))]
    return [name for kind in (False, True) for name, is_box in zip(names, continuous, strict=True) if is_box is kind]


def _show(axes: Any, state_map: StateMap, table: Array, **options: Any) -> Any:
    half = [(values[1] - values[0]) / 2 for values in (state_map.x, state_map.y)]
    extent = (state_map.x[0] - half[0], state_map.x[-1] + half[0], state_map.y[0] - half[1], state_map.y[-1] + half[1])
    return axes.imshow(table, origin="lower", extent=extent, aspect="auto", interpolation="nearest", **options)


def _show_visited(axes: Any, state_map: StateMap) -> None:
    """Draw visited states as dots: white with a dark edge, so that they are visible on every color."""
    limits = axes.get_xlim(), axes.get_ylim()
    # at random: every k-th state would be similar to the others where a policy acts periodically
    shown = state_map.visited[np.random.default_rng(0).permutation(len(state_map.visited))[:_DOTS]]
    axes.scatter(*shown.T, s=5, color="#FFFFFF", edgecolors="#000000", linewidths=0.4, alpha=0.7)
    axes.set(xlim=limits[0], ylim=limits[1])


def _show_options(
    state_map: StateMap,
    table: Array,
    options: Sequence[str],
    title: str,
    matplotlib: ModuleType,
    figure: Any,
    axes: Any,
) -> None:
    count = len(options)
    many = matplotlib.colormaps["viridis"].resampled(count) if count > len(COLORS) else None
    colors = many or matplotlib.colors.ListedColormap(COLORS[:count])
    image = _show(axes, state_map, table, cmap=colors, vmin=-0.5, vmax=count - 0.5)
    bar = figure.colorbar(image, ax=axes)
    axes.set_title(title, fontsize=12)
    if count <= 18:
        bar.set_ticks(range(count), labels=list(options))
    bar.ax.tick_params(length=0)


def _show_probability(
    state_map: StateMap, table: Array, title: str, colors: str, matplotlib: ModuleType, figure: Any, axes: Any
) -> None:
    image = _show(axes, state_map, table, cmap=colors, vmin=0.0, vmax=1.0)
    figure.colorbar(image, ax=axes)
    axes.set_title(title, fontsize=12)


def _show_continuous(
    state_map: StateMap,
    table: Array,
    bounds: tuple[float, float],
    title: str,
    matplotlib: ModuleType,
    figure: Any,
    axes: Any,
) -> None:
    low, high = bounds
    if not (math.isfinite(low) and math.isfinite(high)):
        high = float(abs(table).max()) or 1.0
        low = -high
    image = _show(axes, state_map, table, cmap="PuOr" if low == -high else "viridis", vmin=low, vmax=high)
    figure.colorbar(image, ax=axes)
    axes.set_title(title, fontsize=12)


def _show_value(state_map: StateMap, title: str, matplotlib: ModuleType, figure: Any, axes: Any) -> None:
    figure.colorbar(_show(axes, state_map, state_map.values, cmap="cividis"), ax=axes)
    axes.set_title(title, fontsize=12)


def _note(state_map: StateMap, names: Sequence[str], agent: Agent) -> str:
    """Return the line below the figure: what the dots are, and the values of the components that are on neither axis."""
    others = [component for component in range(len(names)) if component not in state_map.axes]
    parts = ["dots: visited states"]
    if 0 < len(others) <= _NAMED:
        values = ", ".join(f"{names[component]} = {state_map.fixed[component]:.3g}" for component in others)
        parts.append(f"at the medians of visited states: {values}")
    elif others:
        parts.append(f"the other {len(others)} components are at their medians over visited states")
    if agent.state_size:
        parts.append("memory as at the beginning of an episode")
    return "; ".join(parts)

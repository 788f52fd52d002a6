"""What a policy does and what it expects, over two numbers of its observations."""

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
from lockstep.envs.spaces import feature_leaves, leaves
from lockstep.report.names import action_names, observation_names, option_names
from lockstep.report.style import COLOURS, picture

__all__ = ["StateMap", "draw_map", "map_states"]

_CELLS = 121
"""Along either side."""
_WIDE = 1e6
"""A bound beyond is none: no environment comes near."""
_DEVIATIONS = 3.0
_HELD = 4
"""Numbers that are held, named one by one up to so many."""

Array = NDArray[Any]


@dataclass(frozen=True)
class StateMap:
    """An agent's actions and values on a grid of `N` by `N` observations."""

    axes: tuple[int, int]
    """Which numbers of an observation go to the right and up."""
    right: Array
    """`[N]` of the first."""
    up: Array
    """`[N]` of the second."""
    actions: Array
    """`[A, N, N]`: the most probable choices and the means of what is continuous, as the environment takes them. Up, then right."""
    values: Array
    """`[N, N]`."""
    held: Array
    """`[O]`: what all numbers but those two are."""


def map_states(
    agent: Agent, observation_space: Space[Any], axes: Sequence[int] | None, env_id: str, cells: int = _CELLS
) -> StateMap:
    """Asks an agent, who remembers nothing, at `cells` by `cells` observations.

    The grid goes over the bounds of the space, where it has none over three standard deviations around the mean, and where the agent has
    no moments from -3 to 3. All other numbers are at their means, or 0, within their bounds. Everything is allowed.

    Raises ValueError in one line: images, fewer than two numbers, axes that are not there or have to be chosen.
    """
    spaces = agent.spaces
    names = observation_names(env_id, observation_space)
    chosen = _axes(axes, names, bool(spaces.images), env_id)
    low, high, mean = _ranges(agent, observation_space)
    right, up = (np.linspace(low[number], high[number], cells) for number in chosen)
    held = np.concatenate([mean, np.ones(spaces.mask_size)])
    rows = np.tile(held, (cells * cells, 1))
    rows[:, chosen[0]], rows[:, chosen[1]] = np.tile(right, cells), np.repeat(up, cells)
    pilot = PolicyRunner(agent, len(rows))
    values = pilot.values(rows).reshape(cells, cells)
    actions = np.asarray(pilot.act(rows)).reshape(cells, cells, -1)
    return StateMap(chosen, right, up, np.moveaxis(actions, -1, 0), values, mean)


def draw_map(
    found: StateMap, agent: Agent, spaces: tuple[Space[Any], Space[Any]], env_id: str, path: Path, scaled: bool
) -> None:
    """Draws a panel for every component of the actions and one for the value.

    Args:
        found: What `map_states` gave.
        agent: Whose it is.
        spaces: The environment's spaces of observations and actions.
        env_id: For names.
        path: A file that ends in .png or .svg.
        scaled: Whether the values are those of scaled rewards.

    Raises ValueError, in one line, for what `picture` does.
    """
    count = len(found.actions) + 1
    columns = min(count, 4)
    rows = math.ceil(count / columns)
    names = observation_names(env_id, spaces[0])
    with picture(path, 1.2 + 4.6 * columns, 4.2 * rows + 0.4) as (matplotlib, figure):
        panels = figure.subplots(rows, columns, squeeze=False)
        for axes in panels.flat[count:]:
            axes.set_axis_off()
        for component, (axes, name) in enumerate(zip(panels.flat, _components(env_id, spaces[1], agent), strict=False)):
            _show_action(matplotlib, figure, axes, found, agent, component, name, env_id)
        last = panels.flat[count - 1]
        picked = _show(last, found, found.values, cmap="cividis")
        figure.colorbar(picked, ax=last)
        last.set_title("value (of scaled rewards)" if scaled else "value (discounted return)", fontsize=12)
        for axes in panels.flat[:count]:
            axes.grid(visible=False)
        for axes in panels.flat[max(0, count - columns) : count]:
            axes.set_xlabel(names[found.axes[0]])
        for axes in panels[:, 0]:
            axes.set_ylabel(names[found.axes[1]])
        if len(names) > 2 or agent.state_size:
            figure.supxlabel(_held(found, names, agent), fontsize=11, color="#333333")


def _axes(axes: Sequence[int] | None, names: Sequence[str], images: bool, env_id: str) -> tuple[int, int]:
    if images:
        raise ValueError(f"env.id is {env_id!r}: it gives images, and heat maps are for observations of numbers alone")
    if len(names) < 2:
        raise ValueError(f"env.id is {env_id!r}: its observations have 1 number, and a heat map needs at least 2")
    listed = ", ".join(f"{number} {name}" for number, name in enumerate(names[:20])) + ", …" * (len(names) > 20)
    if axes is None:
        if len(names) > 2:
            raise ValueError(f"--axes is missing: {env_id} has {len(names)} numbers, name two of them: {listed}")
        return 0, 1
    first, second = axes
    if not (0 <= first < len(names) and 0 <= second < len(names)) or first == second:
        raise ValueError(f"--axes is {first} {second}: it must be two different ones of {listed}")
    return first, second


def _ranges(agent: Agent, space: Space[Any]) -> tuple[Array, Array, Array]:
    """Low, high and mean of every number that is no mask."""
    moments = agent.observation_moments
    size = agent.spaces.feature_size
    mean = np.zeros(size) if moments is None else moments.mean.numpy()
    deviation = np.ones(size) if moments is None else moments.std.numpy()
    low, high = mean - _DEVIATIONS * deviation, mean + _DEVIATIONS * deviation
    begin = 0
    for _, leaf in feature_leaves(space):
        bounded = isinstance(leaf, Box)
        count = math.prod(leaf.shape) if bounded else flatdim(leaf)
        least = leaf.low.reshape(-1).astype(np.float64) if bounded else np.zeros(count)
        most = leaf.high.reshape(-1).astype(np.float64) if bounded else np.ones(count)
        own = slice(begin, begin := begin + count)
        both = (abs(least) < _WIDE) & (abs(most) < _WIDE)
        low[own] = np.where(both, least, np.maximum(low[own], least))
        high[own] = np.where(both, most, np.minimum(high[own], most))
    return low, high, np.clip(mean, low, high)


def _components(env_id: str, space: Space[Any], agent: Agent) -> list[str]:
    """Names of an action's columns: choices come first."""
    names = action_names(env_id, space)
    kinds = [isinstance(leaf, Box) for _, leaf in leaves(space) for _ in range(math.prod(leaf.shape))]
    return [name for kind in (False, True) for name, own in zip(names, kinds, strict=True) if own is kind]


def _show(axes: Any, found: StateMap, table: Array, **options: Any) -> Any:
    half = [(row[1] - row[0]) / 2 for row in (found.right, found.up)]
    extent = (
        found.right[0] - half[0],
        found.right[-1] + half[0],
        found.up[0] - half[1],
        found.up[-1] + half[1],
    )
    return axes.imshow(table, origin="lower", extent=extent, aspect="auto", interpolation="nearest", **options)


def _show_action(
    matplotlib: ModuleType,
    figure: Any,
    axes: Any,
    found: StateMap,
    agent: Agent,
    component: int,
    name: str,
    env_id: str,
) -> None:
    choices, table = agent.spaces.choices, found.actions[component]
    if component < len(choices):
        count = choices[component]
        own = matplotlib.colormaps["viridis"].resampled(count) if count > len(COLOURS) else None
        colours = own or matplotlib.colors.ListedColormap(COLOURS[:count])
        drawn = _show(axes, found, table, cmap=colours, vmin=-0.5, vmax=count - 0.5)
        bar = figure.colorbar(drawn, ax=axes)
        axes.set_title(f"most probable {name}", fontsize=12)
        if count <= 18:
            bar.set_ticks(range(count))
            only = count == agent.spaces.discrete_actions
            bar.set_ticklabels(option_names(env_id, count) if only else list(map(str, range(count))))
        bar.ax.tick_params(length=0)
        return
    place = component - len(choices)
    low, high = float(agent.spaces.action_low[place]), float(agent.spaces.action_high[place])
    if not (math.isfinite(low) and math.isfinite(high)):
        high = float(abs(table).max()) or 1.0
        low = -high
    drawn = _show(axes, found, table, cmap="PuOr" if low == -high else "viridis", vmin=low, vmax=high)
    figure.colorbar(drawn, ax=axes)
    axes.set_title(f"mean {name}", fontsize=12)


def _held(found: StateMap, names: Sequence[str], agent: Agent) -> str:
    others = [number for number in range(len(names)) if number not in found.axes]
    kind = "at 0" if agent.observation_moments is None else "at their means"
    parts = [f"the other {len(others)} numbers {kind}"] if others else []
    if 0 < len(others) <= _HELD:
        parts = [", ".join(f"{names[number]} = {found.held[number]:.3g}" for number in others)]
    if agent.state_size:
        parts.append("at the beginning of an episode: nothing is remembered")
    return "; ".join(parts)

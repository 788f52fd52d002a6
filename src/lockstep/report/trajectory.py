"""An episode as a picture."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from lockstep.report.episode import Trajectory
from lockstep.report.names import action_names, observation_names, option_names
from lockstep.report.style import BLUE, picture

__all__ = ["draw_trajectory"]

_LINES = 8
"""Numbers that have a panel of their own each; more become the rows of one."""

Array = NDArray[Any]


@dataclass(frozen=True)
class _Panel:
    label: str
    table: Array
    """`[T]`, or `[T, N]` for the rows of a picture."""
    options: Sequence[str] = ()
    """What 0, 1, … stand for."""

    @property
    def height(self) -> float:
        return 2.6 if self.table.ndim == 2 else min(3.0, max(1.1, 0.4 + 0.25 * len(self.options)))


def draw_trajectory(found: Trajectory, env: gym.Env[Any, Any], env_id: str, path: Path, scaled: bool) -> None:
    """Draws observations, actions, rewards and values over the steps, 1000 pixels wide.

    Args:
        found: The episode.
        env: The environment, for its spaces.
        env_id: For names.
        path: A file that ends in .png or .svg.
        scaled: Whether the values are those of scaled rewards.

    Raises ValueError, in one line, for what `picture` does.
    """
    parts = _panels("observation", found.observations, observation_names(env_id, env.observation_space, single=True))
    parts += _actions(found.actions, env.action_space, env_id)
    parts += [_Panel("reward", found.rewards)]
    parts += [_Panel("value (scaled rewards)" if scaled else "value (discounted return)", found.values)]
    heights = [part.height for part in parts]
    with picture(path, 10, sum(heights) + 0.8) as (matplotlib, figure):
        panels = figure.subplots(len(parts), 1, sharex=True, gridspec_kw={"height_ratios": heights})
        for axes, part in zip(panels, parts, strict=True):
            _show(matplotlib, figure, axes, part)
        panels[-1].set_xlabel("step of the episode")
        panels[-1].xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(10, integer=True, steps=(1, 2, 5, 10)))


def _panels(kind: str, table: Array, names: Sequence[str]) -> list[_Panel]:
    if table.shape[1] > _LINES:
        return [_Panel(kind, table)]
    return [_Panel(name, column) for name, column in zip(names, table.T, strict=True)]


def _actions(table: Array, space: gym.Space[Any], env_id: str) -> list[_Panel]:
    if isinstance(space, Discrete):
        return [_Panel("action", table[:, 0] - int(space.start), option_names(env_id, int(space.n)))]
    return _panels("action", table, action_names(env_id, space))


def _show(matplotlib: ModuleType, figure: Any, axes: Any, part: _Panel) -> None:
    axes.margins(x=0.01)
    axes.set_ylabel(part.label.replace(" (", "\n("), rotation=0, ha="right", va="center")
    if part.table.ndim == 2:
        _show_rows(matplotlib, figure, axes, part)
        return
    dot = "o" if len(part.table) == 1 else None
    if not part.options:
        whole = bool((part.table == np.round(part.table)).all())
        # no slopes between discrete values; each step is drawn around its place on the axis
        axes.plot(part.table, color=BLUE, linewidth=1.2, marker=dot, drawstyle="steps-mid" if whole else "default")
        axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4, integer=whole))
        low, high = part.table.min(), part.table.max()
        if low == high:
            axes.set_ylim(low - 1, high + 1)  # else small changes seem to be where there are none
        return
    axes.plot(part.table, linestyle="none", marker="|", markersize=9, color=BLUE)
    axes.set_ylim(-0.6, len(part.options) - 0.4)
    if len(part.options) <= 12:
        axes.set_yticks(range(len(part.options)), part.options)


def _show_rows(matplotlib: ModuleType, figure: Any, axes: Any, part: _Panel) -> None:
    steps, count = part.table.shape
    limit = float(np.percentile(abs(part.table), 98)) or 1.0
    drawn = axes.imshow(
        part.table.T,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, steps - 0.5, count - 0.5, -0.5),
        cmap="PuOr",
        vmin=-limit,
        vmax=limit,
    )
    figure.colorbar(drawn, ax=axes, extend="both", pad=0.01)
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5, integer=True))
    axes.set_ylabel(f"{part.label},\nby number", rotation=0, ha="right", va="center")
    axes.grid(visible=False)

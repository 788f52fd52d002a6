"""Figure of an episode: observations, actions, rewards and values over its steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from lockstep.envs.spaces import feature_leaves, leaves
from lockstep.report.episode import Trajectory
from lockstep.report.names import action_names, observation_names, option_names
from lockstep.report.style import BLUE, GRAY, UNBOUNDED, saved_figure

__all__ = ["draw_trajectory"]

_MAX_PANELS = 8
"""Largest number of components that are drawn in one panel each; more components become the rows of one image."""
_STRIP_WIDTH = 8.2
"""Approximate width of the frames, in units of 100 pixels."""

Array = NDArray[Any]


@dataclass(frozen=True)
class _Panel:
    label: str
    table: Array
    """`[T]` for a line, or `[T, N]` for an image with `N` rows."""
    options: Sequence[str] = ()
    """Names of the values 0, 1, … of a discrete action; empty for others."""
    bounds: tuple[float, float] | None = None
    """Lowest and highest value that the space allows; None if it is not bounded."""

    @property
    def height(self) -> float:
        return 2.6 if self.table.ndim == 2 else min(3.0, max(1.1, 0.4 + 0.25 * len(self.options)))


def draw_trajectory(
    trajectory: Trajectory, env: gym.Env[Any, Any], env_id: str, path: Path, scaled: bool, title: str = ""
) -> None:
    """Draw observations, actions, rewards and values over the steps of an episode, below its frames, if it has any; 1000 pixels wide.

    `env_id` gives the names of the components of the spaces of `env`. `scaled` is True if the agent was trained on scaled rewards, so that
    its values are returns of scaled rewards. Raises ValueError as `saved_figure` does.
    """
    observation_labels = observation_names(env_id, env.observation_space, single=True)
    observation_bounds = _bounds(feature_leaves(env.observation_space))
    panels = _panels("observation", trajectory.observations, observation_labels, observation_bounds)
    panels += _action_panels(trajectory.actions, env.action_space, env_id)
    panels += [_Panel("reward", trajectory.rewards)]
    panels += [_Panel("value (scaled rewards)" if scaled else "value (discounted return)", trajectory.values)]
    strip = np.concatenate(trajectory.frames, axis=1) if trajectory.frames else None
    heights = [] if strip is None else [_STRIP_WIDTH * strip.shape[0] / strip.shape[1]]
    heights += [panel.height for panel in panels]
    with saved_figure(path, 10, sum(heights) + 1.1) as (matplotlib, figure):
        grid = {"height_ratios": heights}
        all_axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, gridspec_kw=grid)[:, 0]
        for axes, panel in zip(all_axes[len(heights) - len(panels) :], panels, strict=True):
            _show(matplotlib, figure, axes, panel)
        if strip is not None:
            extent = (-0.5, len(trajectory.rewards) - 0.5, 0, 1)
            all_axes[0].imshow(strip, extent=extent, aspect="auto", interpolation="antialiased")
            for edge in np.linspace(*extent[:2], len(trajectory.frames) + 1)[1:-1]:  # dark frames would run together
                all_axes[0].axvline(edge, color="white", linewidth=2)
            all_axes[0].set_axis_off()
        all_axes[-1].set_xlabel("step of the episode")
        all_axes[-1].xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(10, integer=True, steps=(1, 2, 5, 10)))
        if title:
            figure.suptitle(title, fontsize=13)


def _bounds(parts: Sequence[tuple[Any, gym.Space[Any]]]) -> list[tuple[float, float] | None]:
    """Return the bounds of each component; None for those without bounds and for discrete ones."""
    bounds: list[tuple[float, float] | None] = []
    for _, leaf in parts:
        if not isinstance(leaf, Box):
            bounds += [None] * int(np.prod(leaf.shape or ()))
            continue
        pairs = zip(leaf.low.reshape(-1).tolist(), leaf.high.reshape(-1).tolist(), strict=True)
        bounds += [(low, high) if max(abs(low), abs(high)) < UNBOUNDED else None for low, high in pairs]
    return bounds


def _panels(
    kind: str, table: Array, names: Sequence[str], bounds: Sequence[tuple[float, float] | None]
) -> list[_Panel]:
    if table.shape[1] > _MAX_PANELS:
        return [_Panel(kind, table)]
    return [_Panel(name, column, bounds=limits) for name, column, limits in zip(names, table.T, bounds, strict=True)]


def _action_panels(table: Array, space: gym.Space[Any], env_id: str) -> list[_Panel]:
    if isinstance(space, Discrete):
        return [_Panel("action", table[:, 0] - int(space.start), option_names(env_id, int(space.n)))]
    return _panels("action", table, action_names(env_id, space), _bounds(list(leaves(space))))


def _show(matplotlib: ModuleType, figure: Any, axes: Any, panel: _Panel) -> None:
    axes.margins(x=0.01)
    label = panel.label.replace(" (", "\n(")
    if panel.bounds:
        label += f"\n{panel.bounds[0]:.3g} to {panel.bounds[1]:.3g}"
    axes.set_ylabel(label, rotation=0, ha="right", va="center")
    if panel.table.ndim == 2:
        _show_rows(matplotlib, figure, axes, panel)
        return
    marker = "o" if len(panel.table) == 1 else None
    if not panel.options:
        integral = bool((panel.table == np.round(panel.table)).all())
        # integers are drawn as steps centered at their time, because sloped lines would suggest values in between
        style = "steps-mid" if integral else "default"
        axes.plot(panel.table, color=BLUE, linewidth=1.2, marker=marker, drawstyle=style)
        axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(4, integer=integral))
        low, high = float(panel.table.min()), float(panel.table.max())
        if low == high:  # an automatic range would magnify rounding errors of a constant
            margin = max(1.0, 0.05 * abs(low))  # rounding would lose 1 next to a huge constant
            axes.set_ylim(low - margin, high + margin)
        bottom, top = axes.get_ylim()
        for bound in panel.bounds or ():
            if 2 * bottom - top <= bound <= 2 * top - bottom:  # a line that is far off would leave the curve no height
                axes.axhline(bound, color=GRAY, linewidth=0.9, linestyle=":")
        return
    axes.plot(panel.table, color=BLUE, linewidth=0.9, marker=marker, drawstyle="steps-mid")
    axes.set_ylim(-0.6, len(panel.options) - 0.4)
    if len(panel.options) <= 12:
        axes.set_yticks(range(len(panel.options)), panel.options)


def _show_rows(matplotlib: ModuleType, figure: Any, axes: Any, panel: _Panel) -> None:
    steps, count = panel.table.shape
    limit = float(np.percentile(abs(panel.table), 98)) or 1.0
    image = axes.imshow(
        panel.table.T,
        aspect="auto",
        interpolation="nearest",
        extent=(-0.5, steps - 0.5, count - 0.5, -0.5),
        cmap="PuOr",
        vmin=-limit,
        vmax=limit,
    )
    figure.colorbar(image, ax=axes, extend="both", pad=0.01)
    axes.yaxis.set_major_locator(matplotlib.ticker.MaxNLocator(5, integer=True))
    axes.set_ylabel(f"{panel.label},\nby component", rotation=0, ha="right", va="center")
    axes.grid(visible=False)

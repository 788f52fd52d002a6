"""Actions, action probabilities and values of a policy on a grid over two components of its observations."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import Space
from gymnasium.spaces import Box
from gymnasium.spaces.utils import flatdim
from numpy.typing import NDArray

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.policy_runner import PolicyRunner
from lockstep.envs.layout import ObservationLayout
from lockstep.envs.spaces import feature_leaves
from lockstep.experiment.policy import TrainedPolicy
from lockstep.report.names import observation_names
from lockstep.report.style import UNBOUNDED

__all__ = ["StateMap", "map_states", "visited_states"]

_CELLS = 121
"""Cells along each side of the map."""
_STEPS = 2000
"""Largest number of steps that are played to find visited states."""
_PERCENTILES = (1, 99)
_MARGIN = 0.25
"""An axis covers the percentiles of the visited states, and this share of their distance on both sides."""
_ROWS, _SHUFFLES = 256, 4
"""Number of visited states, and of exchanged values for each, from which the effect of a component is estimated."""

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
    probabilities: Sequence[Array]
    """`[options, N, N]` for every discrete component of an action."""
    values: Array
    """`[N, N]`, indexed by y and x."""
    fixed: Array
    """`[O]`, values of all components; those of the two axes are not used."""
    visited: Array
    """`[V, 2]`, the visited states: values of the components on the two axes."""


def visited_states(agent: Agent, env: gym.Env[Any, Any], seeds: Sequence[int], generator: np.random.Generator) -> Array:
    """Play episodes and return the observations `[V, O]` that the agent acted on, as rows of numbers without the action mask.

    There is an episode for each of `seeds`, until 2,000 steps are played. Actions are sampled by `generator`, as in
    training. Raises ValueError if observations contain images or do not fit their space.
    """
    if agent.spaces.images:
        raise ValueError("observations contain images; heat maps need observations without images")
    policy = TrainedPolicy(agent, env.observation_space, env.action_space, generator, sample=True)
    layout = ObservationLayout(env.observation_space, agent.spaces)
    rows: list[Array] = []
    for seed in seeds:
        observation, info = env.reset(seed=seed)
        act, done = policy.begin(), False
        while not done and len(rows) < _STEPS:
            action = act(observation, info)
            rows.append(np.array(layout.row(observation, info), np.float64)[: agent.spaces.feature_size])
            observation, _, terminated, truncated, info = env.step(action)
            done = terminated or truncated
    return np.stack(rows)


def map_states(
    agent: Agent,
    observation_space: Space[Any],
    axes: Sequence[int] | None,
    env_id: str,
    visited: Array,
    cells: int = _CELLS,
) -> StateMap:
    """Evaluate an agent at `cells` by `cells` observations. A recurrent agent is in its initial state, and action masks allow every action.

    `visited` are observations `[V, O]` as `visited_states` returns them. An axis covers the range of the visited
    states and a margin, within the bounds of the observation space. All other components are at their medians over the
    visited states. Without `axes`, they are the two components with the largest effect on the policy over the visited
    states: how much the action, or the probabilities of actions, change if a state gets the component of another one.

    Raises ValueError if the observations contain fewer than two components, or if `axes` are invalid. The message is one line.
    """
    names = observation_names(env_id, observation_space)
    _check_axes(axes, names, env_id)
    first, second = _most_influential(agent, visited) if axes is None else axes
    low, high = _ranges(observation_space, visited)
    x, y = (np.linspace(low[component], high[component], cells) for component in (first, second))
    median = np.median(visited, axis=0)
    rows = np.tile(median, (cells * cells, 1))
    rows[:, first], rows[:, second] = np.tile(x, cells), np.repeat(y, cells)
    actions, probabilities, values = _evaluate(agent, rows)
    shape = (cells, cells)
    return StateMap(
        (first, second),
        x,
        y,
        np.moveaxis(actions.reshape(*shape, -1), -1, 0),
        [np.moveaxis(table.reshape(*shape, -1), -1, 0) for table in probabilities],
        values.reshape(shape),
        median,
        visited[:, [first, second]],
    )


def _check_axes(axes: Sequence[int] | None, names: Sequence[str], env_id: str) -> None:
    """Raise ValueError if there are fewer than two components, or if the chosen ones are invalid."""
    if len(names) < 2:
        raise ValueError(
            f"env.id is {env_id!r}: observations have {len(names)} components; a heat map needs at least 2"
        )
    if axes is None:
        return
    first, second = axes
    if not (0 <= first < len(names) and 0 <= second < len(names)) or first == second:
        listed = ", ".join(f"{index} {name}" for index, name in enumerate(names[:20])) + ", …" * (len(names) > 20)
        raise ValueError(f"--axes is {first} {second}: it must be two different components of {listed}")


def _evaluate(agent: Agent, rows: Array) -> tuple[Array, list[Array], Array]:
    """Return actions `[N, A]`, probabilities `[N, options]` of every discrete component, and values `[N]`."""
    spaces = agent.spaces
    rows = np.concatenate([rows, np.ones((len(rows), spaces.mask_size))], axis=1)
    runner = PolicyRunner(agent, len(rows))
    values, probabilities = runner.values(rows), []
    if spaces.choices:
        logits = runner.named(rows)["logits"]
        parts = np.split(logits, list(accumulate(spaces.choices))[:-1], axis=1)
        odds = [np.exp(part - part.max(axis=1, keepdims=True)) for part in parts]
        probabilities = [part / part.sum(axis=1, keepdims=True) for part in odds]
    return np.asarray(runner.act(rows)).reshape(len(rows), -1), probabilities, values


def _most_influential(agent: Agent, visited: Array) -> tuple[int, int]:
    """Return the two components with the largest effect on the policy, in ascending order.

    Flags are left out where two others remain: all that a map could show of them are its two edges.
    """
    flags = np.array([len(np.unique(column)) <= 2 for column in visited.T])
    if np.count_nonzero(~flags) < 2:
        flags[:] = False
    generator = np.random.default_rng(0)
    rows = visited[generator.permutation(len(visited))[:_ROWS]]
    repeated = np.tile(rows, (_SHUFFLES, 1))
    order = np.concatenate([generator.permutation(len(rows)) for _ in range(_SHUFFLES)])
    before, effects = _evaluate(agent, repeated), []
    for component in range(rows.shape[1]):
        changed = repeated.copy()
        changed[:, component] = rows[order, component]
        effects.append(_difference(agent, before, _evaluate(agent, changed)))
    first, second = sorted(np.argsort(np.where(flags, np.inf, -np.array(effects)), kind="stable")[:2].tolist())
    return first, second


def _difference(agent: Agent, before: tuple[Any, ...], after: tuple[Any, ...]) -> float:
    """Return the mean difference between two results of `_evaluate`.

    It is the total variation distance of probabilities, and the distance of continuous components relative to their
    range, or to their standard deviation if they are not bounded.
    """
    difference = sum(float(abs(new - old).sum(axis=1).mean()) / 2 for old, new in zip(before[1], after[1], strict=True))
    spaces = agent.spaces
    continuous = [actions[:, len(spaces.choices) :] for actions in (before[0], after[0])]
    if not continuous[0].size:
        return difference
    span = spaces.action_high.astype(np.float64) - spaces.action_low
    scale = np.where(np.isfinite(span), span, continuous[0].std(axis=0))
    return difference + float((abs(continuous[1] - continuous[0]) / np.where(scale > 0, scale, 1)).mean())


def _ranges(space: Space[Any], visited: Array) -> tuple[Array, Array]:
    """Return the low and high ends `[O]` of the axes for every component."""
    low, high = np.percentile(visited, _PERCENTILES, axis=0)
    margin = np.where(high > low, _MARGIN * (high - low), np.maximum(1e-3, abs(low)))
    lower, upper = _bounds(space)
    return np.maximum(low - margin, lower), np.minimum(high + margin, upper)


def _bounds(space: Space[Any]) -> tuple[Array, Array]:
    """Return the bounds `[O]` of every component, infinite where there are none."""
    lower, upper = [], []
    for _, leaf in feature_leaves(space):
        is_box = isinstance(leaf, Box)
        count = math.prod(leaf.shape) if is_box else flatdim(leaf)
        lower.append(leaf.low.reshape(-1).astype(np.float64) if is_box else np.zeros(count))
        upper.append(leaf.high.reshape(-1).astype(np.float64) if is_box else np.ones(count))
    low, high = np.concatenate(lower), np.concatenate(upper)
    return np.where(low > -UNBOUNDED, low, -np.inf), np.where(high < UNBOUNDED, high, np.inf)

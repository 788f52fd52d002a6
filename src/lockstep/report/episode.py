"""One episode of an agent: what it saw, did, got and expected, and a film of it."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from lockstep.envs.spaces import feature_leaves, leaves
from lockstep.report.evaluate import Begin
from lockstep.report.gif import gif
from lockstep.report.rendering import choose_renderer, draw
from lockstep.report.style import make_folder
from lockstep.report.video import FRAMES_PER_SECOND, film

__all__ = ["Trajectory", "film_if_drawn", "play_trajectory"]

Array = NDArray[Any]
Make = Callable[[str | None], gym.Env[Any, Any]]
Value = Callable[[Any, dict[str, Any]], float]


@dataclass(frozen=True)
class Trajectory:
    """An episode of `T` steps. Row `t` is what was seen, what was then done, and what it gave."""

    observations: Array
    """`[T, O]`, as the environment gives them, without images; a choice is one number."""
    actions: Array
    """`[T, A]`, as the environment takes them."""
    rewards: Array
    """`[T]`."""
    values: Array
    """`[T]`, what the critic expected."""


def play_trajectory(make: Make, begin: Begin, value: Value, seed: int, shown: Path | None) -> Trajectory:
    """Plays an episode that begins with `reset(seed=seed)`, and films it.

    Args:
        make: Makes the environment with that `render_mode`. It is closed at the end.
        begin: Called once.
        value: The value of an observation and its info, asked before every action.
        seed: See above.
        shown: The film, a .gif or .mp4; None: none.

    Raises ValueError, in one line, when it can't be filmed here or the film can't be written.
    """
    if shown is not None:
        make_folder(shown)
        choose_renderer()
    env = make(None if shown is None else "rgb_array")
    try:
        rate = int(env.metadata.get("render_fps") or FRAMES_PER_SECOND)
        record = (film if shown.suffix == ".mp4" else gif)(shown, rate) if shown else nullcontext(lambda frame: None)
        with record as show:
            return _play(env, begin(), value, seed, show if shown else None)
    except OSError as error:
        if shown is None:
            raise
        raise ValueError(
            f"{shown} can't be written ({error.strerror or error}); choose another place with --out"
        ) from None
    finally:
        env.close()


def film_if_drawn(make: Make, begin: Begin, value: Value, seed: int, shown: Path) -> tuple[Trajectory, str | None]:
    """`play_trajectory` with a film where the environment draws; else without, and why."""
    env = make(None)
    env.close()
    if "rgb_array" not in (env.metadata.get("render_modes") or ()):
        return play_trajectory(make, begin, value, seed, None), "the environment draws no pictures"
    try:
        return play_trajectory(make, begin, value, seed, shown), None
    except ValueError as error:
        return play_trajectory(make, begin, value, seed, None), str(error)


def _play(
    env: gym.Env[Any, Any],
    act: Callable[[Any, dict[str, Any]], Any],
    value: Value,
    seed: int,
    show: Callable[[NDArray[np.uint8]], None] | None,
) -> Trajectory:
    columns: tuple[list[Any], ...] = ([], [], [], [])
    observation, info = env.reset(seed=seed)
    over = False
    if show is not None:
        show(draw(env))
    while not over:
        seen, judged = _flat(feature_leaves(env.observation_space), observation), value(observation, info)
        action = act(observation, info)
        observation, reward, terminated, truncated, info = env.step(action)
        over = terminated or truncated
        row = (seen, _flat(list(leaves(env.action_space)), action), float(reward), judged)
        for column, entry in zip(columns, row, strict=True):
            column.append(entry)
        if show is not None:
            show(draw(env))
    return Trajectory(*(np.array(column) for column in columns))


def _flat(parts: Sequence[tuple[Any, Any]], value: Any) -> Array:
    found = [np.ravel(reduce(getitem, path, value)).astype(np.float64) for path, _ in parts]
    return np.concatenate(found) if found else np.zeros(0)

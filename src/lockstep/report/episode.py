"""Recording of one episode of an agent: observations, actions, rewards and values, and optionally a video."""

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

from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.spaces import feature_leaves, leaves
from lockstep.report.evaluate import MAX_STEPS, Begin
from lockstep.report.gif import write_gif
from lockstep.report.rendering import choose_renderer, render_frame
from lockstep.report.style import make_folder
from lockstep.report.video import frame_rate, write_video

__all__ = ["Trajectory", "play_and_record", "play_trajectory"]

Array = NDArray[Any]
Make = Callable[[str | None], gym.Env[Any, Any]]
Value = Callable[[Any, dict[str, Any]], float]
_SHOWN_FRAMES, _KEPT_FRAMES = 8, 64


@dataclass(frozen=True)
class Trajectory:
    """Episode of `T` steps. Row `t` has an observation, the agent's action on it, and the reward of that action."""

    observations: Array
    """Observations `[T, O]`, as returned by the environment, without images; a discrete component is one number."""
    actions: Array
    """Actions `[T, A]`, as passed to the environment."""
    rewards: Array
    """Rewards `[T]`."""
    values: Array
    """Values `[T]`, predicted by the critic."""
    frames: Sequence[NDArray[np.uint8]] = ()
    """Up to 8 frames `[height, width, 3]` in the middle of equal parts of the episode; empty if it was not rendered."""


class _SpacedFrames:
    """Frames at equal distances over an episode of unknown length, at most 64 at a time."""

    def __init__(self) -> None:
        self._frames: list[NDArray[np.uint8]] = []
        self._stride, self._count = 1, 0

    def add(self, frame: NDArray[np.uint8]) -> None:
        if self._count % self._stride == 0:
            self._frames.append(frame)
        self._count += 1
        if len(self._frames) == _KEPT_FRAMES:
            self._frames, self._stride = self._frames[::2], 2 * self._stride

    def middles(self) -> list[NDArray[np.uint8]]:
        """Return the frames in the middle of up to 8 equal parts."""
        parts = min(_SHOWN_FRAMES, len(self._frames))
        return [self._frames[int((part + 0.5) * len(self._frames) / parts)] for part in range(parts)]


def play_trajectory(make: Make, begin: Begin, value: Value, seed: int, video: Path | None) -> Trajectory:
    """Play one episode that starts with `reset(seed=seed)`; record it if `video` is the path of a .gif or .mp4 file.

    `make` creates the environment with the given `render_mode`; the environment is closed at the end. `value` returns
    the value of an observation and its info. Raises as `render_frame` does if the environment cannot be rendered, and ValueError if the
    video cannot be written.
    """
    if video is not None:
        make_folder(video)
        choose_renderer()
    env = make(None if video is None else "rgb_array")
    try:
        write = write_video if video is not None and video.suffix == ".mp4" else write_gif
        recorder = write(video, frame_rate(env)) if video else nullcontext(lambda frame: None)
        with recorder as add_frame:
            return _play(env, begin(), value, seed, add_frame if video else None)
    except OSError as error:
        if video is None:
            raise
        raise ValueError(
            f"{video} cannot be written: {error.strerror or error}; choose another path with --out"
        ) from None
    finally:
        env.close()


def play_and_record(make: Make, begin: Begin, value: Value, seed: int, video: Path) -> tuple[Trajectory, str | None]:
    """Call `play_trajectory`, with a video if the environment can be rendered.

    Return the trajectory, and the reason if there is no video, else None.
    """
    env = make(None)
    env.close()
    if "rgb_array" not in (env.metadata.get("render_modes") or ()):
        return play_trajectory(make, begin, value, seed, None), "the environment has no render mode 'rgb_array'"
    try:
        return play_trajectory(make, begin, value, seed, video), None
    except (ValueError, EnvironmentFailed) as error:
        return play_trajectory(make, begin, value, seed, None), str(error)


def _play(
    env: gym.Env[Any, Any],
    act: Callable[[Any, dict[str, Any]], Any],
    value: Value,
    seed: int,
    add_frame: Callable[[NDArray[np.uint8]], None] | None,
) -> Trajectory:
    columns: tuple[list[Any], ...] = ([], [], [], [])
    spaced = _SpacedFrames()
    observation, info = env.reset(seed=seed)
    done = False
    if add_frame is not None:
        add_frame(frame := render_frame(env))
        spaced.add(frame)
    while not done:
        features, predicted = _flatten(feature_leaves(env.observation_space), observation), value(observation, info)
        action = act(observation, info)
        observation, reward, terminated, truncated, info = env.step(action)
        done = terminated or truncated or len(columns[2]) + 1 == MAX_STEPS
        row = (features, _flatten(list(leaves(env.action_space)), action), float(reward), predicted)
        for column, entry in zip(columns, row, strict=True):
            column.append(entry)
        if add_frame is not None:
            add_frame(frame := render_frame(env))
            spaced.add(frame)
    observations, actions, rewards, values = (np.array(column) for column in columns)
    return Trajectory(observations, actions, rewards, values, spaced.middles())


def _flatten(parts: Sequence[tuple[Any, Any]], value: Any) -> Array:
    arrays = [np.ravel(reduce(getitem, path, value)).astype(np.float64) for path, _ in parts]
    return np.concatenate(arrays) if arrays else np.zeros(0)

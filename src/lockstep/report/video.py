"""Episodes as an MP4 file (H.264), on any machine: no display, no installed ffmpeg."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from lockstep.report.evaluate import Begin
from lockstep.report.rendering import choose_renderer, draw

__all__ = ["FRAMES_PER_SECOND", "film", "record_video"]

FRAMES_PER_SECOND = 30
"""Where an environment's metadata name none."""

Array = NDArray[Any]


def record_video(
    make: Callable[[], gym.Env[Any, Any]], begin: Begin, path: Path, seeds: Sequence[int]
) -> list[tuple[float, int]]:
    """Plays one episode per seed, one after the other, and films them.

    Args:
        make: Makes the environment, with `render_mode="rgb_array"`. It is closed at the end.
        begin: Called for every episode.
        path: The .mp4 file. It is written aside and renamed, so it is whole or absent; one that is there is replaced.
        seeds: Every episode begins with `reset(seed=…)`.

    Returns:
        Return and length in steps of every episode. The film has one frame more per episode than steps: the first.

    Raises:
        ValueError: In one line, when a package or a library to draw or to encode is missing.
        OSError: When the file can't be written.
    """
    encoder = _encoder()
    choose_renderer()
    env = make()
    try:
        rate = int(env.metadata.get("render_fps") or FRAMES_PER_SECOND)
        with _film(encoder, path, rate) as show:
            return [_play(env, begin(), seed, show) for seed in seeds]
    finally:
        env.close()


def film(path: Path, rate: int) -> AbstractContextManager[Callable[[Array], None]]:
    """Gives a function that appends a frame `[height, width, 3]` of uint8 to an .mp4 of `rate` frames per second; at the end the file is
    whole. Raises what `record_video` does.
    """
    return _film(_encoder(), path, rate)


def _play(
    env: gym.Env[Any, Any], act: Callable[[Any, dict[str, Any]], Any], seed: int, show: Callable[[Array], None]
) -> tuple[float, int]:
    observation, info = env.reset(seed=seed)
    show(draw(env))
    total, length, over = 0.0, 0, False
    while not over:
        observation, reward, terminated, truncated, info = env.step(act(observation, info))
        show(draw(env))
        total, length, over = total + float(reward), length + 1, terminated or truncated
    return total, length


@contextmanager
def _film(encoder: ModuleType, path: Path, rate: int) -> Iterator[Callable[[Array], None]]:
    """Gives a function that appends a frame; at the end the file is checked and renamed to `path`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    writer: Any = None
    frames = 0

    def show(frame: Array) -> None:
        nonlocal writer, frames
        frame = _even(frame)
        if writer is None:
            writer = encoder.write_frames(
                str(partial),
                (frame.shape[1], frame.shape[0]),
                fps=rate,
                macro_block_size=2,
                ffmpeg_log_level="error",
                # the format, because the name does not end in .mp4; the index first, so that a browser plays while it loads
                output_params=["-f", "mp4", "-movflags", "+faststart"],
            )
            writer.send(None)
        writer.send(frame)
        frames += 1

    try:
        yield show
        if writer is not None:
            writer.close()
            # ffmpeg's exit status is not looked at by imageio-ffmpeg: a full disk shows in what is there to read
            if encoder.count_frames_and_secs(str(partial))[0] != frames:
                raise OSError(f"{path} could not be written whole; is the disk full?")
            partial.replace(path)
    finally:
        if writer is not None:
            writer.close()
        partial.unlink(missing_ok=True)


def _even(frame: Array) -> Array:
    """Repeats the last row and column where their number is odd: H.264 stores colour for blocks of 2 by 2."""
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(frame)


def _encoder() -> ModuleType:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise ValueError("a video needs imageio-ffmpeg; pip install 'lockstep-rl[video]'") from None
    module: ModuleType = imageio_ffmpeg
    return module

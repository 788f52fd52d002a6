"""Recording of episodes as MP4 files (H.264), which needs neither a display nor an installed ffmpeg."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from lockstep.files import make_folder
from lockstep.report.evaluate import Begin, play_episodes
from lockstep.report.rendering import choose_renderer, render_frame

__all__ = ["frame_rate", "record_video", "write_video"]

_FRAMES_PER_SECOND = 30
"""Frame rate for environments whose metadata has no `render_fps`."""
_RATES = 0.1, 1000.0
"""Lowest and highest frame rate of a video. ffmpeg gets the rate with two digits after the point."""

Array = NDArray[Any]


def frame_rate(env: gym.Env[Any, Any]) -> float:
    """Return the frames per second of an environment, which may be less than 1."""
    rate = float(env.metadata.get("render_fps") or _FRAMES_PER_SECOND)
    return min(max(rate, _RATES[0]), _RATES[1]) if rate > 0 else _FRAMES_PER_SECOND


def record_video(
    make: Callable[[], gym.Env[Any, Any]], begin: Begin, path: Path, seeds: Sequence[int]
) -> list[tuple[float, int]]:
    """Play one episode per seed, one after the other, and record them in one video. Return the return and the length in steps of each.

    `make` creates the environment with `render_mode="rgb_array"`; it is closed at the end. The .mp4 file is written to a temporary file, which
    is then renamed, so it is never incomplete. It has one frame more per episode than steps, for the first observation. Raises ValueError if a
    package or library for rendering or encoding is missing, EnvironmentFailed if `render` raises an error, OSError if the file cannot be
    written.
    """
    _encoder()  # raises before the environment is created
    choose_renderer()
    env = make()
    try:
        with write_video(path, frame_rate(env)) as add_frame:
            return list(play_episodes(env, begin, seeds, lambda: add_frame(render_frame(env))))
    finally:
        env.close()


@contextmanager
def write_video(path: Path, rate: float) -> Iterator[Callable[[Array], None]]:
    """Yield a function that appends a frame, uint8 `[height, width, 3]`, to an .mp4 file with `rate` frames per second.

    When the context exits, check the file and rename it to `path`. Raises the errors of `record_video`.
    """
    encoder = _encoder()
    make_folder(path.parent)
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")  # ffmpeg would write through a link
    writer: Any = None
    frames = 0

    def add_frame(frame: Array) -> None:
        nonlocal writer, frames
        frame = _pad_to_even(frame)
        if writer is None:
            writer = encoder.write_frames(
                str(partial),
                (frame.shape[1], frame.shape[0]),
                fps=rate,
                macro_block_size=2,
                ffmpeg_log_level="error",
                # The format is explicit because the temporary name does not end in .mp4. With faststart the index comes first, so that a
                # browser can play the file while loading it.
                output_params=["-f", "mp4", "-movflags", "+faststart"],
            )
            writer.send(None)
        writer.send(frame)
        frames += 1

    try:
        yield add_frame
        if writer is not None:
            writer.close()
            # imageio-ffmpeg ignores the exit status of ffmpeg, so an error such as a full disk only shows as missing frames
            if encoder.count_frames_and_secs(str(partial))[0] != frames:
                raise OSError(f"{path} is incomplete: not all frames could be written; is the disk full?")
            partial.replace(path)
    finally:
        if writer is not None:
            writer.close()
        partial.unlink(missing_ok=True)


def _pad_to_even(frame: Array) -> Array:
    """Repeat the last row or column if the number of rows or columns is odd: H.264 stores color in blocks of 2 by 2 pixels."""
    height, width = frame.shape[:2]
    if height % 2 or width % 2:
        frame = np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return np.ascontiguousarray(frame)


def _encoder() -> ModuleType:
    try:
        import imageio_ffmpeg
    except ImportError:
        raise ValueError("videos need imageio-ffmpeg; pip install 'lockstep-rl[video]'") from None
    module: ModuleType = imageio_ffmpeg
    return module

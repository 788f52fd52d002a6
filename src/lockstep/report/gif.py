"""Writer of animated GIFs, which need no video encoder and play wherever images are shown."""

import math
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.report.style import make_folder

__all__ = ["write_gif"]

_RATE = 25
"""Largest number of frames per second: players show no more, and GIF durations are multiples of 10 ms."""
_WIDTH = 360
_COLORS = 128


@contextmanager
def write_gif(path: Path, rate: float) -> Iterator[Callable[[NDArray[np.uint8]], None]]:
    """Yield a function that appends a frame `[height, width, 3]`, and write the GIF, which repeats forever, when the context exits.

    `rate` is the number of appended frames per second. Frames are scaled down to at most 360 pixels of width, and some are dropped if `rate`
    exceeds 25. The file is renamed when complete; without frames, none is written. Raises ValueError if Pillow is not installed or the folder
    cannot be created, OSError if the file cannot be written.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ValueError(
            "GIF files need Pillow, which is installed with matplotlib; pip install 'lockstep-rl[report]'"
        ) from None
    make_folder(path)
    every = max(1, math.ceil(rate / _RATE))
    frames: list[Any] = []
    received = 0

    def add_frame(frame: NDArray[np.uint8]) -> None:
        nonlocal received
        if received % every == 0:
            image = Image.fromarray(frame)
            if image.width > _WIDTH:
                image = image.resize((_WIDTH, round(image.height * _WIDTH / image.width)))
            frames.append(image.quantize(_COLORS))  # one byte per pixel instead of three
        received += 1

    yield add_frame
    if not frames:
        return
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")  # Pillow would write through a link
    try:
        milliseconds = round(100 * every / rate) * 10
        frames[0].save(partial, format="GIF", save_all=True, append_images=frames[1:], duration=milliseconds, loop=0)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

"""Episodes as an animated GIF, which needs no encoder and plays wherever pictures are shown."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.report.style import make_folder

__all__ = ["gif"]

_RATE = 25
"""Frames per second at most: players don't show more, and durations are hundredths of a second."""
_WIDTH = 360
_COLOURS = 128


@contextmanager
def gif(path: Path, rate: int) -> Iterator[Callable[[NDArray[np.uint8]], None]]:
    """Gives a function that appends a frame `[height, width, 3]` of a film with `rate` frames per second; at the end it is written.

    Pictures are at most 360 wide, and some are left out where there would be more than 25 a second. It is written aside and renamed, and
    repeats for ever. Raises ValueError without Pillow or a folder, OSError when the file can't be written.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ValueError("a GIF needs Pillow, which comes with matplotlib; pip install 'lockstep-rl[report]'") from None
    make_folder(path)
    every = max(1, -(-rate // _RATE))
    frames: list[Any] = []
    shown = 0

    def show(frame: NDArray[np.uint8]) -> None:
        nonlocal shown
        if shown % every == 0:
            picture = Image.fromarray(frame)
            if picture.width > _WIDTH:
                picture = picture.resize((_WIDTH, round(picture.height * _WIDTH / picture.width)))
            frames.append(picture.quantize(_COLOURS))  # a third of the memory
        shown += 1

    yield show
    if not frames:
        return
    partial = path.with_name(path.name + ".partial")
    try:
        lasts = round(100 * every / rate) * 10
        frames[0].save(partial, format="GIF", save_all=True, append_images=frames[1:], duration=lasts, loop=0)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)

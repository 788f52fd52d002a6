"""Common parts of all figures: colors, font sizes, axes and the writing of files."""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, NamedTuple

__all__ = [
    "BLUE",
    "COLORS",
    "GRAY",
    "GREEN",
    "SKY",
    "UNBOUNDED",
    "VERMILION",
    "Over",
    "Unit",
    "axis",
    "check_name",
    "make_folder",
    "saved_figure",
]

# Okabe and Ito, "Color Universal Design" (2008): distinguishable with every type of color vision.
BLUE, GREEN, SKY, VERMILION, GRAY = "#0072B2", "#009E73", "#56B4E9", "#D55E00", "#595959"
COLORS = (BLUE, VERMILION, GREEN, "#E69F00", "#CC79A7", SKY, GRAY, "#000000")
"""Colors of the lines of a figure, in the order of use."""
UNBOUNDED = 1e6
"""Bounds of a space of at least this size are treated as missing: no environment reaches them."""
Over = Literal["steps", "seconds"]
"""Quantity on the horizontal axis of a curve: environment steps, or seconds of wall time."""


class Unit(NamedTuple):
    """Unit of the horizontal axis of a curve."""

    divisor: float
    """Divisor that converts steps or seconds to the unit."""
    name: str


_STYLE: dict[str, Any] = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 12,
    "grid.color": "#DDDDDD",
    "svg.fonttype": "none",
    "svg.hashsalt": "lockstep",
}
_UNITS = ((7200.0, 3600.0, "h"), (300.0, 60.0, "min"), (0.0, 1.0, "s"))


def check_name(path: Path) -> None:
    """Raise ValueError if the file name does not end in .png or .svg."""
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"figure file is {path}: the name must end in .png or .svg")


@contextmanager
def saved_figure(path: Path, width: float, height: float) -> Iterator[tuple[ModuleType, Any]]:
    """Yield matplotlib and an empty figure, and write the figure to `path` when the context exits; equal figures give equal files.

    `width` and `height` are in units of 100 pixels. Raises ValueError if `path` does not end in .png or .svg, matplotlib is not installed, or
    the file, which is renamed when complete, cannot be written.
    """
    check_name(path)
    matplotlib = _matplotlib()
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=(width, height), dpi=100, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
        yield matplotlib, figure
        _save(figure, path)


def axis(matplotlib: ModuleType, axes: Any, over: Over, largest: float, label: bool = True) -> Unit:
    """Format the horizontal axis for values up to `largest`, in steps or seconds, and return its unit."""
    unit, name = Unit(1.0, "steps"), "environment steps"
    if over == "steps":
        axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    else:
        unit = next(Unit(divisor, unit) for least, divisor, unit in _UNITS if largest >= least)
        name = f"wall time ({unit.name})"
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
    if label:
        axes.set_xlabel(name)
    axes.margins(x=0.01)
    axes.tick_params(color=GRAY)
    return unit


def make_folder(path: Path) -> None:
    """Create the parent folder of `path`. Raises ValueError if that is impossible."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (
            f"{path.parent} is not a folder"
            if isinstance(error, (FileExistsError, NotADirectoryError))
            else error.strerror
        )
        raise ValueError(f"{path} cannot be written: {why}; choose another path with --out") from None


def _save(figure: Any, path: Path) -> None:
    kind = path.suffix[1:]
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")  # matplotlib would write through a link
    make_folder(path)
    try:
        # without a date, the same run gives the same file
        figure.savefig(partial, format=kind, metadata={"Date": None} if kind == "svg" else None)
        partial.replace(path)
    except OSError as error:
        raise ValueError(
            f"{path} cannot be written: {error.strerror or error}; choose another path with --out"
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def _matplotlib() -> ModuleType:
    try:
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.lines
        import matplotlib.patches
        import matplotlib.ticker
    except ImportError:
        raise ValueError("figures need matplotlib; pip install 'lockstep-rl[report]'") from None
    return matplotlib

"""What all pictures have in common: colours, sizes of letters, axes, and how a file is written."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

__all__ = ["BLUE", "COLOURS", "GREY", "SKY", "VERMILION", "Over", "axis", "check_name", "make_folder", "picture"]

# Okabe and Ito, "Color Universal Design" (2008): told apart with any colour vision.
BLUE, SKY, VERMILION, GREY = "#0072B2", "#56B4E9", "#D55E00", "#595959"
COLOURS = (BLUE, VERMILION, "#009E73", "#E69F00", "#CC79A7", SKY, GREY, "#000000")
"""For things that are told apart, in the order in which they are used."""
Over = Literal["steps", "seconds"]
"""What a curve is drawn over."""
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
    """Raises ValueError if the file's name does not end in .png or .svg."""
    if path.suffix not in (".png", ".svg"):
        raise ValueError(f"{path} is no name for a picture: it must end in .png or .svg")


@contextmanager
def picture(path: Path, width: float, height: float) -> Iterator[tuple[ModuleType, Any]]:
    """Gives matplotlib and a figure of `width` by `height` hundreds of pixels, to be drawn on; at the end it is written to `path`.

    It is written aside and renamed, and the same picture always gives the same file. Raises ValueError, in one line, for an ending that is
    neither .png nor .svg, without matplotlib, and for a file that can't be written.
    """
    check_name(path)
    matplotlib = _matplotlib()
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=(width, height), dpi=100, layout="constrained")
        figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1)
        yield matplotlib, figure
        _save(figure, path)


def axis(matplotlib: ModuleType, axes: Any, over: Over, largest: float, label: bool = True) -> float:
    """Prepares the horizontal axis for numbers up to `largest`; gives what to divide them by."""
    divisor, name = 1.0, "environment steps"
    if over == "steps":
        axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
    else:
        divisor, unit = next((divisor, unit) for least, divisor, unit in _UNITS if largest >= least)
        name = f"wall time ({unit})"
    axes.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(6, steps=(1, 2, 2.5, 5, 10)))
    if label:
        axes.set_xlabel(name)
    axes.margins(x=0.01)
    axes.tick_params(color=GREY)
    return divisor


def make_folder(path: Path) -> None:
    """Makes the folder that `path` is to lie in. Raises ValueError if that can't be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = (
            f"{path.parent} is no folder"
            if isinstance(error, (FileExistsError, NotADirectoryError))
            else error.strerror
        )
        raise ValueError(f"{path} can't be written ({why}); choose another place with --out") from None


def _save(figure: Any, path: Path) -> None:
    kind = path.suffix[1:]
    partial = path.with_name(path.name + ".partial")
    make_folder(path)
    try:
        # no date, so that the same run gives the same file
        figure.savefig(partial, format=kind, metadata={"Date": None} if kind == "svg" else None)
        partial.replace(path)
    except OSError as error:
        raise ValueError(
            f"{path} can't be written ({error.strerror or error}); choose another place with --out"
        ) from None
    finally:
        partial.unlink(missing_ok=True)


def _matplotlib() -> ModuleType:
    try:
        import matplotlib.colors
        import matplotlib.figure
        import matplotlib.patches
        import matplotlib.ticker
    except ImportError:
        raise ValueError("a picture needs matplotlib; pip install 'lockstep-rl[report]'") from None
    return matplotlib

"""Checks of the arguments of the Python API. Programs may pass values of any type, and numbers of NumPy.

Each check raises ValueError in one line for a value that is not valid.
"""

import os
import threading
from numbers import Integral
from reprlib import Repr

import numpy as np

from lockstep.config import Config
from lockstep.run.evaluations import Choice
from lockstep.runtime.rank_info import find_rank_info

__all__ = [
    "check_source",
    "check_start",
    "chosen_iteration",
    "run_text",
    "true_or_false",
    "whole_number",
    "whole_number_or_none",
]

_short_repr = Repr()
_short_repr.maxstring = _short_repr.maxother = 60


def whole_number(name: str, value: object, least: int) -> int:
    """Return the argument `name`, a whole number of at least `least`, as an int."""
    if not _is_whole(value) or int(value) < least:  # type: ignore[call-overload]
        raise ValueError(f"{name} is {_line(value)}: it must be a whole number, at least {least}")
    return int(value)  # type: ignore[call-overload,no-any-return]


def whole_number_or_none(name: str, value: object, least: int) -> int | None:
    """Return the argument `name`, None or a whole number of at least `least`."""
    return None if value is None else whole_number(name, value, least)


def true_or_false(name: str, value: object) -> bool:
    """Return the argument `name`, True or False."""
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} is {_line(value)}: it must be True or False")
    return bool(value)


def chosen_iteration(value: object) -> Choice:
    """Return the argument `iteration` of a function that loads a policy."""
    if value is None:
        return None
    if isinstance(value, str) and value == "best":
        return "best"
    if not _is_whole(value):
        raise ValueError(f'iteration is {_line(value)}: it must be the number of an iteration, or "best"')
    return int(value)  # type: ignore[call-overload,no-any-return]


def run_text(value: object) -> str:
    """Return the argument `run`, a path or a name, as text."""
    text = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(text, str):
        raise ValueError(f"run is {_line(value)}: it must be a Run, a path or a name in runs/")
    return text


def check_source(preset: object, config: object) -> None:
    """Check the types of the arguments `preset` and `config`."""
    if not isinstance(preset, str | None):
        raise ValueError(f"preset is {_line(preset)}: it must be the name of a preset; lockstep presets lists them")
    if not isinstance(config, Config | str | os.PathLike | None):
        raise ValueError(f"config is {_line(config)}: it must be a Config, or the path of a .yaml, .json or .gin file")


def check_start(ranks: object, restarts: object) -> tuple[int, int]:
    """Return the numbers of ranks and restarts. Refuse a program that torchrun or the like started, and ranks started by a side thread."""
    size, retries = whole_number("ranks", ranks, 1), whole_number("restarts", restarts, 0)
    rank_info = find_rank_info()
    if rank_info is not None:
        raise ValueError(
            f"{rank_info.launcher} started this program as one of {rank_info.size} ranks: start it once, and set ranks; "
            "launchers can start `lockstep train` only"
        )
    if size > 1 and threading.current_thread() is not threading.main_thread():
        raise ValueError(f"ranks is {size}: ranks can be started from the main thread only")
    return size, retries


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _line(value: object) -> str:
    return " ".join(_short_repr.repr(value).split())  # arrays are shown in several lines

"""Drawing environments without a display.

Gymnasium's 2D environments draw on a surface of pygame and need no system library. MuJoCo needs an OpenGL context and, left
alone, asks the window system for one, which fails on a machine without a display.
"""

import ctypes
import ctypes.util
import os
import sys
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.error import DependencyNotInstalled
from numpy.typing import NDArray

__all__ = ["choose_renderer", "draw"]

_EGL = ("libEGL.so.1", "libGL.so.1")
"""EGL makes the context; PyOpenGL looks the drawing functions up in libGL."""
_INSTALL = "`apt-get install libegl1 libgl1` brings a software renderer"


def choose_renderer() -> None:
    """On a machine without a display, tells MuJoCo to draw with EGL, else OSMesa, and pygame to open no window.

    It acts through this process's environment variables, changes none that is set, and has to be called before the
    environment to draw is made. Where MuJoCo can use neither, `draw` says what to install.
    """
    if not _headless():
        return
    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    if os.environ.get("MUJOCO_GL"):
        return
    if _egl_loads():
        os.environ["MUJOCO_GL"] = "egl"
    elif ctypes.util.find_library("OSMesa"):
        os.environ["MUJOCO_GL"] = "osmesa"


def draw(env: gym.Env[Any, Any]) -> NDArray[np.uint8]:
    """One frame `[height, width, 3]` of an environment made with `render_mode="rgb_array"`.

    Raises ValueError when the environment can't be drawn here, saying what to install.
    """
    name = env.spec.id if env.spec else type(env.unwrapped).__name__
    mujoco = hasattr(env.unwrapped, "mujoco_renderer")
    if mujoco and _headless() and not os.environ.get("MUJOCO_GL"):
        raise ValueError(
            f"{name} can't be drawn: there is no display, and neither EGL nor OSMesa is installed; {_INSTALL}"
        )
    try:
        frame: Any = env.render()
    except DependencyNotInstalled as error:
        raise ValueError(f"{name} can't be drawn: {_line(error)}; pip install 'lockstep-rl[video]'") from error
    except Exception as error:
        # A broken OpenGL shows itself in as many exceptions as there are layers: ImportError, AttributeError, GLError, …
        if not mujoco:
            raise
        raise ValueError(
            f"{name} can't be drawn with MUJOCO_GL={os.environ.get('MUJOCO_GL')}: {_line(error)}; {_INSTALL}"
        ) from error
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise ValueError(f"{name} can't be drawn: its render() gives no picture; render_mode must be 'rgb_array'")
    return frame


def _headless() -> bool:
    return sys.platform == "linux" and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))


def _egl_loads() -> bool:
    try:
        for library in _EGL:
            ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

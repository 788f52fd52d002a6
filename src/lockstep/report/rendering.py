"""Rendering of environments on machines without a display.

Gymnasium's 2D environments render to a pygame surface and need no system library. MuJoCo needs an OpenGL context. By default it requests one
from the window system, which fails on a machine without a display.
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

from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.interface import failure_text
from lockstep.messages import one_line

__all__ = ["choose_renderer", "render_frame"]

_EGL = ("libEGL.so.1", "libGL.so.1")
"""EGL creates the context; PyOpenGL loads the drawing functions from libGL."""
_INSTALL = "install a software renderer with `apt-get install libegl1 libgl1`"


def choose_renderer() -> None:
    """Configure rendering for a machine without a display: MuJoCo uses EGL, or OSMesa if EGL is missing, and pygame opens no window.

    This sets environment variables of the process, but none that is set already. Call it before the environment is created. If neither EGL
    nor OSMesa is installed, `render_frame` raises an error that says what to install.
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


def render_frame(env: gym.Env[Any, Any]) -> NDArray[np.uint8]:
    """Render one frame, uint8 `[height, width, 3]`.

    Raises ValueError, which says what to install, if the environment can't be rendered here, and EnvironmentFailed if its `render` raises an
    error.
    """
    name = env.spec.id if env.spec else getattr(env.unwrapped, "env_id", type(env.unwrapped).__name__)
    mujoco = hasattr(env.unwrapped, "mujoco_renderer")
    if mujoco and _headless() and not os.environ.get("MUJOCO_GL"):
        raise ValueError(
            f"{name} cannot be rendered: there is no display, and neither EGL nor OSMesa is installed; {_INSTALL}"
        )
    try:
        frame: Any = env.render()
    except DependencyNotInstalled as error:
        raise ValueError(f"{name} cannot be rendered: {_line(error)}; pip install 'lockstep-rl[video]'") from error
    except NotImplementedError as error:
        raise EnvironmentFailed(f"{name} cannot be rendered: {_line(error, 'it has no method render()')}") from None
    except (Exception, SystemExit) as error:
        # a broken OpenGL raises different exceptions in different layers: ImportError, AttributeError, GLError, …
        if not mujoco or isinstance(error, SystemExit):
            raise EnvironmentFailed(
                f"{name} cannot be rendered: render() {' '.join(failure_text(type(error), error).split())}"
            ) from error
        raise ValueError(
            f"{name} cannot be rendered with MUJOCO_GL={os.environ.get('MUJOCO_GL')}: {_line(error)}; {_INSTALL}"
        ) from error
    if not isinstance(frame, np.ndarray) or frame.dtype != np.uint8 or frame.ndim != 3 or frame.shape[2] != 3:
        raise ValueError(f"{name} cannot be rendered: render() returns no RGB image; render_mode must be 'rgb_array'")
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


def _line(error: Exception, default: str = "") -> str:
    return default if default and not str(error).split() else one_line(error)

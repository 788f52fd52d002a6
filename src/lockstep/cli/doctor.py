"""`lockstep doctor`: check what is installed on this machine, and what it allows."""

import ctypes
import ctypes.util
import os
import platform
import shutil
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from lockstep import __version__
from lockstep.cli.arguments import Arguments
from lockstep.compiling.library import interpreter_problem, is_prebuilt
from lockstep.messages import one_line
from lockstep.processes.cores import usable_cores
from lockstep.processes.exit_codes import DONE, FAILED
from lockstep.runtime.checks import cuda_devices

__all__ = ["main"]

_CORE = {"torch": "torch", "numpy": "numpy", "gymnasium": "gymnasium", "safetensors": "safetensors"}
_CORE |= {"PyYAML": "yaml", "rich": "rich", "docstring_parser": "docstring_parser", "threadpoolctl": "threadpoolctl"}
_OPTIONAL = {
    "Box2D": ("Box2D", "box2d", "LunarLander, BipedalWalker"),
    "mujoco": ("mujoco", "mujoco", "Reacher, Pusher, HalfCheetah, …"),
    "envpool": ("envpool", "envpool", "environments that run in C++"),
    "ale-py": ("ale_py", "atari", "Atari games"),
    "opencv-python-headless": ("cv2", "atari", "Atari games"),
    "pygame-ce": ("pygame", "video", "drawing 2D environments"),
    "imageio-ffmpeg": ("imageio_ffmpeg", "video", "videos"),
    "matplotlib": ("matplotlib", "report", "curves"),
    "Jinja2": ("jinja2", "report", "`lockstep report`"),
    "onnx": ("onnx", "export", "`lockstep export`"),
    "onnxscript": ("onnxscript", "export", "`lockstep export`"),
    "onnxruntime": ("onnxruntime", "export", "`lockstep export`"),
    "tensorboard": ("tensorboard", "tensorboard", "viewing curves in TensorBoard"),
    "wandb": ("wandb", "track", "`--run.loggers wandb`"),
    "trackio": ("trackio", "track", "`--run.loggers trackio`"),
    "optuna": ("optuna", "sweep", "`lockstep sweep --search`"),
    "starlette": ("starlette", "dashboard", "`lockstep dashboard`"),
    "uvicorn": ("uvicorn", "dashboard", "`lockstep dashboard`"),
    "huggingface_hub": ("huggingface_hub", "hub", "`lockstep push`, `play hub:USER/NAME`"),
    "pettingzoo": ("pettingzoo", "pettingzoo", "games of several agents"),
    "lightning-fabric": ("lightning_fabric", "fabric", "`--runtime.kind fabric`"),
    "s3fs": ("s3fs", "s3", "`--run.store s3://BUCKET/FOLDER`"),
    "ray": ("ray", "ray", "`--on ray`"),
}
"""Optional packages. Name of the distribution -> its module, the extra of lockstep that installs it, its purpose."""


def main(argv: Sequence[str]) -> int:
    """Print packages, machine and a verdict. Return 0, or 1 if training cannot work here."""
    Arguments("doctor", "Checks the installation and the available features.").read(argv)
    broken = _print_packages()
    _print_machine()
    print()
    for line in _verdict(broken):
        print(line)
    return FAILED if broken else DONE


def _print_line(name: str, state: str, purpose: str = "") -> None:
    print(f"{name:<24}{state:<24}{purpose}".rstrip())


def _print_packages() -> list[str]:
    """Print the versions of all packages. Return one line per required package that cannot be imported."""
    broken = []
    _print_line("lockstep", __version__)
    _print_line("python", platform.python_version(), sys.executable)
    for package, module in _CORE.items():
        try:
            import_module(module)
        except Exception as error:  # a broken installation can fail in any way
            broken.append(f"{package} can't be imported: {one_line(error)}")
        _print_line(package, _version(package))
    for package, (module, extra, purpose) in _OPTIONAL.items():
        installed = find_spec(module) is not None
        _print_line(
            package,
            _version(package) if installed else "–",
            purpose if installed else f"{purpose}: pip install 'lockstep-rl[{extra}]'",
        )
    return broken


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not found"


def _kernels() -> str:
    """Describe where the interpreter of kernels comes from."""
    if interpreter_problem() is not None:
        return "–"
    return "installed" if is_prebuilt() else "built when needed"


def _print_machine() -> None:
    usable = usable_cores()
    _print_line("cores", f"{usable} of {os.cpu_count()} usable", "ranks beyond that share a core")
    _print_line("CUDA devices", str(_count_cuda_devices() or "–"), "`--runtime.device cuda`")
    _print_line("kernels", _kernels(), "`--runtime.compile`, which makes updates several times faster")
    _print_line(
        "launchers", ", ".join(filter(shutil.which, ("mpirun", "srun"))) or "–", "ranks, besides --ranks and torchrun"
    )
    _print_line(
        "shared memory", "yes" if _has_memory_files() else "no", "tensors between ranks of this host; else through gloo"
    )
    _print_line(
        "EGL",
        "yes" if _can_load("libEGL.so.1") and _can_load("libGL.so.1") else "–",
        "drawing MuJoCo without a display",
    )
    _print_line("OSMesa", "yes" if ctypes.util.find_library("OSMesa") else "–", "the same, where there is no EGL")
    _print_line(
        "display", os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY") or "–", "windows of `lockstep play`"
    )
    _print_line("ffmpeg", _ffmpeg() or "–", "videos")


def _count_cuda_devices() -> int:
    try:
        return cuda_devices()
    except Exception:  # PyTorch is broken: _print_packages has reported that
        return 0


def _has_memory_files() -> bool:
    """Return True if the system has anonymous memory files (memfd_create)."""
    try:
        os.close(os.memfd_create("lockstep", 0))
    except (AttributeError, OSError):
        return False
    return True


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _ffmpeg() -> str | None:
    """Return the origin of ffmpeg, None without one. Videos are encoded with the ffmpeg of imageio-ffmpeg only."""
    try:
        import imageio_ffmpeg

        return "with imageio-ffmpeg" if imageio_ffmpeg.get_ffmpeg_exe() else None
    except (ImportError, RuntimeError):
        return None


def _verdict(broken: list[str]) -> list[str]:
    if broken:
        return [f"broken: {line}" for line in broken]
    lines = ["training works here"]
    missing = sorted({extra for module, extra, _ in _OPTIONAL.values() if find_spec(module) is None})
    if missing:
        lines.append(f"for everything: pip install 'lockstep-rl[{','.join(missing)}]'")
    lines.append(_video_verdict())
    return lines


def _video_verdict() -> str:
    if _ffmpeg() is None:
        return "videos: no; pip install 'lockstep-rl[video]'"
    renderable = ["2D environments"] * (find_spec("pygame") is not None)
    mujoco = find_spec("mujoco") is not None
    off_screen = (_can_load("libEGL.so.1") and _can_load("libGL.so.1")) or ctypes.util.find_library("OSMesa")
    renderable += ["MuJoCo"] * bool(mujoco and (off_screen or os.environ.get("DISPLAY")))
    hint = "; for MuJoCo: apt-get install libegl1 libgl1" if mujoco and "MuJoCo" not in renderable else ""
    return f"videos: {' and '.join(renderable) or 'none'}{hint}"

"""`lockstep doctor`: what is installed here, and what it allows."""

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
from lockstep.group.memory import usable_cores
from lockstep.runtime.checks import cuda_devices, find_compiler

__all__ = ["main"]

_CORE = {"torch": "torch", "numpy": "numpy", "gymnasium": "gymnasium", "safetensors": "safetensors"}
_CORE |= {"PyYAML": "yaml", "rich": "rich", "docstring_parser": "docstring_parser", "threadpoolctl": "threadpoolctl"}
_OPTIONAL = {
    "Box2D": ("Box2D", "box2d", "LunarLander, BipedalWalker"),
    "mujoco": ("mujoco", "mujoco", "Reacher, Pusher, HalfCheetah, …"),
    "envpool": ("envpool", "envpool", "environments stepped in C++"),
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
    "huggingface_hub": ("huggingface_hub", "hub", "`lockstep push`, `play hub:USER/NAME`"),
    "lightning-fabric": ("lightning_fabric", "fabric", "`--runtime.kind fabric`"),
}
"""Distribution -> module, extra of lockstep, what it is for."""


def main(argv: Sequence[str]) -> int:
    """Prints what there is and a verdict. Returns 0, or 1 when training can't work here."""
    Arguments("doctor", "Checks what is installed here and what it allows.").read(argv)
    broken = _packages()
    _machine()
    print()
    for line in _verdict(broken):
        print(line)
    return 1 if broken else 0


def _line(name: str, found: str, purpose: str = "") -> None:
    print(f"{name:<24}{found:<24}{purpose}".rstrip())


def _packages() -> list[str]:
    """Prints versions; returns what is wrong with packages that nothing works without."""
    broken = []
    _line("lockstep", __version__)
    _line("python", platform.python_version(), sys.executable)
    for package, module in _CORE.items():
        try:
            import_module(module)
        except Exception as error:  # a broken installation can fail in any way
            broken.append(f"{package} can't be imported: {' '.join(str(error).split()) or type(error).__name__}")
        _line(package, _version(package))
    for package, (module, extra, purpose) in _OPTIONAL.items():
        found = find_spec(module) is not None
        _line(
            package,
            _version(package) if found else "–",
            purpose if found else f"{purpose}: pip install 'lockstep-rl[{extra}]'",
        )
    return broken


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not found"


def _machine() -> None:
    usable = usable_cores()
    _line("cores", f"{usable} of {os.cpu_count()} usable", "ranks beyond that share a core")
    _line("CUDA devices", str(_cuda() or "–"), "`--runtime.device cuda`")
    _line("C++ compiler", find_compiler() or "–", "`--runtime.compile`, an update several times faster")
    _line(
        "launchers", ", ".join(filter(shutil.which, ("mpirun", "srun"))) or "–", "ranks, besides --ranks and torchrun"
    )
    _line("memory files", "yes" if _memory_files() else "no", "tensors between ranks of this host; else through gloo")
    _line("/dev/shm", _shared_memory(), "tensors between the processes of `gymnasium-async`")
    _line("EGL", "yes" if _loads("libEGL.so.1") and _loads("libGL.so.1") else "–", "drawing MuJoCo without a display")
    _line("OSMesa", "yes" if ctypes.util.find_library("OSMesa") else "–", "the same, where there is no EGL")
    _line(
        "display", os.environ.get("WAYLAND_DISPLAY") or os.environ.get("DISPLAY") or "–", "windows of `lockstep play`"
    )
    _line("ffmpeg", _ffmpeg() or "–", "videos")


def _cuda() -> int:
    try:
        return cuda_devices()
    except Exception:  # PyTorch is broken, which has been said
        return 0


def _memory_files() -> bool:
    try:
        os.close(os.memfd_create("lockstep", 0))
    except (AttributeError, OSError):
        return False
    return True


def _shared_memory() -> str:
    try:
        return f"{shutil.disk_usage('/dev/shm').free >> 20:,} MiB free"
    except OSError:
        return "–"


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _ffmpeg() -> str | None:
    """Where it is: the one of imageio-ffmpeg, which videos are made with."""
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
    drawn = ["2D environments"] * (find_spec("pygame") is not None)
    mujoco = find_spec("mujoco") is not None
    off_screen = (_loads("libEGL.so.1") and _loads("libGL.so.1")) or ctypes.util.find_library("OSMesa")
    drawn += ["MuJoCo"] * bool(mujoco and (off_screen or os.environ.get("DISPLAY")))
    hint = "; for MuJoCo: apt-get install libegl1 libgl1" if mujoco and "MuJoCo" not in drawn else ""
    return f"videos: {' and '.join(drawn) or 'of nothing'}{hint}"

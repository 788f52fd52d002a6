"""Fingerprint of a rank, which determines its bits: versions, source files, config, and the arithmetic of this host."""

import os
import platform
import sys
from collections.abc import Iterator, Mapping
from hashlib import sha256
from pathlib import Path

import gymnasium as gym

import lockstep
from lockstep.config import Config
from lockstep.config.decode import encode
from lockstep.config.fields import LOCAL_FIELDS
from lockstep.envs.functions import registered_function
from lockstep.experiment.arithmetic import arithmetic_digests
from lockstep.processes.portable import is_portable
from lockstep.run.environment import processor_type

__all__ = ["Fingerprint", "describe_dispatch", "make_fingerprint"]

Fingerprint = Mapping[str, Mapping[str, str]]
"""Values by kind and name. The kinds are `version`, `source` (digests of files), `config`, and `bits` (digests of calculations)."""

_PACKAGES = (
    *("torch", "numpy", "gymnasium", "mujoco", "Box2D", "envpool", "ale_py", "cv2"),
    *("pettingzoo", "lightning_fabric"),
)
"""Packages that bits may depend on, by the names of their modules. A package that is not imported is not used."""
_DISPATCH = (
    *("ATEN_CPU_CAPABILITY", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"),
    *("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "GLIBC_TUNABLES"),
)
"""Environment variables by which libraries select their code."""
_INSTALLED = ("site-packages", "dist-packages")
"""Names of folders of installed packages."""


def make_fingerprint(config: Config) -> Fingerprint:
    """Return the fingerprint of this rank, which has imported the modules of its environment."""
    modules = list(_environment_modules(config))
    packages = dict.fromkeys([*_PACKAGES, *(module.partition(".")[0] for module in modules)])
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in packages}
    return {
        "version": {
            "lockstep": lockstep.__version__,
            "Python": platform.python_version(),
            **{name: str(version) for name, version in versions.items() if version is not None},
        },
        "source": dict(_source_digests(modules)),
        "config": {
            f"{section}.{field}": str(value)
            for section, fields in encode(config).items()
            for field, value in fields.items()
            if f"{section}.{field}" not in LOCAL_FIELDS
        },
        "bits": arithmetic_digests(),
    }


def describe_dispatch() -> dict[str, str]:
    """Return what libraries select their code by: the environment variables that are set, and the processor."""
    variables = {name: os.environ.get(name, "not set") for name in _DISPATCH}
    return {**variables, "the processor": processor_type(is_portable())}


def _environment_modules(config: Config) -> Iterator[str]:
    """Yield the names of the modules that define the environment and register it."""
    known, function = gym.registry.get(config.env.id), registered_function(config.env.id)
    entry = function or getattr(known, "entry_point", None) or getattr(known, "vector_entry_point", None)
    defining = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", None)
    for name in dict.fromkeys([config.env.module, defining]):
        if name in sys.modules:
            yield str(name)


def _source_digests(modules: list[str]) -> Iterator[tuple[str, str]]:
    """Yield the digests of the imported source files of lockstep, and of those in the folders of `modules`, by name."""
    files = [path for module in list(sys.modules.values()) if (path := _source_file(module))]
    for name in ("lockstep", *modules):
        folder, _, file = _source_file(sys.modules[name]).rpartition("/")
        # the folder of a module that is installed on its own has other packages as well
        alone = folder.endswith(_INSTALLED)
        for path in files if file else ():
            inside = path.removeprefix(f"{folder}/")
            if inside == file or (inside != path and not alone and not {*_INSTALLED} & {*inside.split("/")}):
                yield f"{name}: {inside}", _file_digest(path)


def _file_digest(path: str) -> str:
    try:
        return sha256(Path(path).read_bytes()).hexdigest()[:16]
    except OSError:  # a module in an archive
        return ""


def _source_file(module: object) -> str:
    """Return the path of the file of a module; empty if it has none, or is compiled."""
    path = getattr(module, "__dict__", {}).get("__file__")  # getattr(module, "__file__") makes lazy modules import
    return path if isinstance(path, str) and path.endswith(".py") else ""

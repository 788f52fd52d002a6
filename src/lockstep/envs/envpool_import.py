"""Partial import of envpool: only the families that an environment needs.

When envpool is imported, it registers all its families. That takes a second, most of it for rendering packages of
environments that are rarely used.
"""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.metadata import version
from types import ModuleType
from typing import Any

__all__ = ["registration"]

_ALL_FAMILIES = "envpool.entry"
"""The module that imports all families."""
_VERSIONS = "envpool>=1.2.5"
"""Versions that have the modules that are imported here, which envpool does not document."""


def registration(env_id: str, family: str | None) -> Any:
    """Return envpool's registration module, with `env_id` registered if envpool has it.

    `family` is the package of envpool that is imported first; None imports all families. Raises ValueError if this version lacks a module
    that is imported here, or needs a library that this machine lacks.
    """
    try:
        if family is not None:
            if "envpool" not in sys.modules:
                with _without_families() as envpool:
                    _import_families_on_demand(envpool)
            with suppress(ModuleNotFoundError):  # a version with other modules: all families are imported below
                import_module(f"envpool.{family}.registration")
        module = _private_module("envpool.registration", "list_all_envs")
        if env_id not in module.list_all_envs():
            _private_module(_ALL_FAMILIES)
    except ImportError as error:
        hint = "`apt-get install libegl1 libgl1`, " if re.search(r"lib(E?GL|OpenGL)\.so", str(error)) else ""
        raise ValueError(
            f"env.engine is 'envpool': envpool {version('envpool')} can't be imported: {error}; {hint}or use engine 'gymnasium'"
        ) from None
    return module


def _private_module(name: str, *functions: str) -> Any:
    """Import an undocumented module of envpool. Raises ValueError if the module or one of `functions` is missing."""
    try:
        module = import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        module = None
    if module is None or not all(hasattr(module, function) for function in functions):
        raise ValueError(
            f"env.engine is 'envpool': envpool {version('envpool')} has no {'.'.join((name, *functions))}; install "
            f"'{_VERSIONS}', or use engine 'gymnasium'"
        )
    return module


@contextmanager
def _without_families() -> Iterator[ModuleType]:
    sys.modules[_ALL_FAMILIES] = ModuleType(_ALL_FAMILIES)
    try:
        yield import_module("envpool")
    finally:
        del sys.modules[_ALL_FAMILIES]


def _import_families_on_demand(envpool: ModuleType) -> None:
    """Make `envpool` import all families when other code accesses one of its attributes."""
    attributes = {name: vars(envpool).pop(name) for name in envpool.__all__}

    def get_attribute(name: str) -> object:
        if name not in attributes:
            raise AttributeError(f"module 'envpool' has no attribute {name!r}")
        import_module(_ALL_FAMILIES)
        vars(envpool).update(attributes)
        return attributes[name]

    vars(envpool)["__getattr__"] = get_attribute

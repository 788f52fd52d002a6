"""envpool, imported only as far as an environment needs it.

It registers all its families when it is imported, which takes a second, most of it for what draws environments that are hardly ever asked for.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["registration"]

_ALL = "envpool.entry"
"""The module that imports all families."""


def registration(env_id: str, family: str | None) -> Any:
    """The `make` and `list_all_envs` of envpool, which know `env_id` if there is such an environment.

    `family` is the package of envpool that is looked into first; None: into all.
    """
    if family is not None:
        if "envpool" not in sys.modules:
            with _without_families() as envpool:
                _complete_once_used(envpool)
        import_module(f"envpool.{family}.registration")
    known = import_module("envpool.registration")
    if env_id not in known.list_all_envs():
        import_module(_ALL)
    return known


@contextmanager
def _without_families() -> Iterator[ModuleType]:
    sys.modules[_ALL] = ModuleType(_ALL)
    try:
        yield import_module("envpool")
    finally:
        del sys.modules[_ALL]


def _complete_once_used(envpool: ModuleType) -> None:
    """Whoever else uses the module `envpool` finds all of it."""
    taken = {name: vars(envpool).pop(name) for name in envpool.__all__}

    def find(name: str) -> object:
        if name not in taken:
            raise AttributeError(f"module 'envpool' has no attribute {name!r}")
        import_module(_ALL)
        vars(envpool).update(taken)
        return taken[name]

    vars(envpool)["__getattr__"] = find

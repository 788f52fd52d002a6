"""Partial import of envpool: only the families that an environment needs.

When envpool is imported, it registers all its families. That takes a second, most of it for drawing packages of
environments that are rarely used.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["registration"]

_ALL_FAMILIES = "envpool.entry"
"""The module that imports all families."""


def registration(env_id: str, family: str | None) -> Any:
    """Return envpool's registration module, with `env_id` registered if envpool has it.

    `family` is the package of envpool that is imported first; None imports all families.
    """
    if family is not None:
        if "envpool" not in sys.modules:
            with _without_families() as envpool:
                _import_families_on_demand(envpool)
        import_module(f"envpool.{family}.registration")
    module = import_module("envpool.registration")
    if env_id not in module.list_all_envs():
        import_module(_ALL_FAMILIES)
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

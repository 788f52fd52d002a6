"""Users' modules, which register their environments with Gymnasium when they are imported."""

import os
import re
import sys
import traceback
from importlib import import_module

__all__ = ["import_environments", "import_registered"]


def import_environments(module: str | None) -> None:
    """Imports the module of that name, from the current folder or wherever Python finds it; None: nothing.

    Only ever to be called with what a user typed. Raises ValueError in one line if it can't be imported.
    """
    if module is None:
        return
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", module):
        raise ValueError(f"env.module is {module!r}: it must be the name of a module, such as my_envs for my_envs.py")
    here = os.getcwd()  # noqa: PTH109
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)  # as `python -m` does
    try:
        import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module == missing or module.startswith(f"{missing}.")):
            raise ValueError(
                f"env.module is {module!r}: there is no module {missing!r}, neither in {here} nor among what is installed"
            ) from None
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"env.module is {module!r}: importing it failed: {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        ) from error


def import_registered(module: str, default: str) -> str:
    """Import the module as `import_environments` does, and return the id of the only environment that it registers.

    If a program has imported the module before, its environments are those whose entry point it defines. A module that registers a
    core or an encoder instead leaves the `default`. Raises ValueError, listing what it registered, if there are several
    environments, or nothing at all.
    """
    from gymnasium import registry

    from lockstep.models.registry import core_names, encoder_names

    before, parts, imported = set(registry), len(core_names() + encoder_names()), module in sys.modules
    import_environments(module)
    ids = sorted(set(registry) - before) or sorted(name for name in registry if _defines(module, name))
    if len(ids) == 1:
        return ids[0]
    if not ids and (imported or len(core_names() + encoder_names()) > parts):
        return default
    registered = ", ".join(ids) if ids else "no environment"
    raise ValueError(f"env.id is not given: env.module {module!r} registered {registered}; choose one with --env ID")


def _defines(module: str, env_id: str) -> bool:
    from gymnasium import registry

    entry = registry[env_id].entry_point
    return entry.startswith(f"{module}:") if isinstance(entry, str) else getattr(entry, "__module__", None) == module

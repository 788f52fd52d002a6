"""Import of users' modules, which register their environments with Gymnasium."""

import os
import re
import sys
import traceback
from importlib import import_module

__all__ = ["import_environments", "import_registered"]


def import_environments(module: str | None, field: str = "env.module") -> None:
    """Import a module that `field` of the config names; do nothing for None. Raises ValueError if the import fails.

    Importing runs code: call this only with a name that a user typed.
    """
    if module is None:
        return
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", module):
        raise ValueError(f"{field} is {module!r}: it must be the name of a module, such as my_envs for my_envs.py")
    here = os.getcwd()  # noqa: PTH109
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)  # `python -m` does the same
    try:
        import_module(module)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and (module == missing or module.startswith(f"{missing}.")):
            raise ValueError(
                f"{field} is {module!r}: there is no module {missing!r}, neither in {here} nor among the installed packages"
            ) from None
        last = traceback.extract_tb(error.__traceback__)[-1]
        raise ValueError(
            f"{field} is {module!r}: importing it failed: {type(error).__name__}: {error} ({last.filename}, line {last.lineno})"
        ) from error


def import_registered(module: str, default: str) -> str:
    """Import a module as `import_environments` does, and return the id of the only environment that it registers.

    If the module was imported before, its environments are those whose entry point it defines. Return `default` if a
    module without environments registers a core, an encoder, a head or a distribution, or was imported before. Raises ValueError, listing the
    registered environments, if there are several, or if the module registers nothing at all.
    """
    from gymnasium import registry

    from lockstep.models.registry import registered_names

    ids_before, parts_before = set(registry), len(registered_names())
    was_imported = module in sys.modules
    import_environments(module)
    ids = sorted(set(registry) - ids_before) or sorted(name for name in registry if _defines(module, name))
    if len(ids) == 1:
        return ids[0]
    if not ids and (was_imported or len(registered_names()) > parts_before):
        return default
    registered = ", ".join(ids) if ids else "no environment"
    raise ValueError(f"env.id is not given: env.module {module!r} registered {registered}; choose one with --env ID")


def _defines(module: str, env_id: str) -> bool:
    from gymnasium import registry

    entry = registry[env_id].entry_point or registry[env_id].vector_entry_point
    return entry.startswith(f"{module}:") if isinstance(entry, str) else getattr(entry, "__module__", None) == module

"""The config of a program that calls the Python API."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep import presets
from lockstep.config import Config
from lockstep.config.compose import dropped_fields, import_env_module
from lockstep.config.compose import load as compose
from lockstep.config.decode import encode, known_sections
from lockstep.config.flags import MODULES, SHORT
from lockstep.envs.functions import Make, register_function
from lockstep.envs.settings import EnvConfig
from lockstep.experiment.arguments import check_source

__all__ = ["compose_config", "settings_tree"]

Tree = dict[str, dict[str, object]]


def settings_tree(settings: Mapping[str, object]) -> tuple[Tree, Make | None]:
    """Return settings as a config tree, and the function that makes environments, if any. The tree has its id."""
    tree: dict[str, Any] = {}
    for name, value in settings.items():
        if name in known_sections() and isinstance(value, Mapping):
            fields = {f"{name}.{field}": item for field, item in value.items()}
        else:
            fields = {SHORT.get(name, name): value}
        for path, item in fields.items():
            section, dot, field = path.partition(".")
            if not dot:
                tree[section] = item  # not a section: `decode` raises ValueError for it
            elif field in tree.setdefault(section, {}):
                raise ValueError(f"{path} is given twice")
            else:
                tree[section][field] = os.fspath(item) if isinstance(item, os.PathLike) else item
    env = tree.get("env", {})
    make = env.get("id")
    if make is None or isinstance(make, str):
        return tree, None
    env["id"] = register_function(make)
    return tree, make


def compose_config(preset: str | None, config: Config | str | os.PathLike[str] | None, tree: Tree) -> Config:
    """Compose a config: settings override `config`, which overrides the preset. Raises ValueError if they conflict."""
    check_source(preset, config)
    preset_tree: Any = presets.read(preset) if preset else None
    env_id = tree.get("env", {}).get("id")
    base, file = preset_tree, None if config is None or isinstance(config, Config) else Path(config)
    if isinstance(config, Config):
        if preset:
            raise ValueError(f"preset is {preset!r}: a complete Config was given too; remove one of the two")
        base = encode(config)
        # `compose` accepts a module from flags only, because files are not trusted; a Config comes from the program itself
        for section, field in MODULES:
            if module := base[section].pop(field):
                tree = {**tree, section: {field: module, **tree.get(section, {})}}
        if env_id and base["env"]["id"] == EnvConfig.id:
            # the default, most likely not set: the goal of the Config is not for that environment
            del base["env"]["id"]
    flags = import_env_module(base, file, tree, example=presets.example(preset))
    for line in dropped_fields(base, file, flags):
        warnings.warn(line, stacklevel=3)  # at the call of `train`
    return compose(base, file, flags)

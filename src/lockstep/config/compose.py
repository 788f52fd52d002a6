"""Puts a config together: defaults < preset < file < flags."""

from collections.abc import Mapping
from pathlib import Path

from lockstep.config import Config
from lockstep.config.decode import decode, encode, known_sections
from lockstep.config.files import read
from lockstep.config.gin_aliases import Iterations
from lockstep.envs.modules import import_environments, import_registered
from lockstep.envs.settings import EnvConfig

__all__ = ["import_env_module", "load", "written"]

Tree = Mapping[str, object]


def load(preset: Tree | None, file: Path | None, flags: Tree) -> Config:
    """The config that the trees of a preset, a file and flags give; what comes later wins, field by field.

    `env.count` and `env.per_rank` are one setting in two spellings: giving one takes back the other, given earlier.

    Raises ValueError in one line for whatever is wrong with them.
    """
    return decode(_merged(preset, file, flags), Config())


def written(preset: Tree | None, file: Path | None, flags: Tree) -> dict[str, dict[str, object]]:
    """The tree that says the same as all three: of `load`'s config, the fields that one of them names.

    Raises ValueError as `load` does.
    """
    merged = _merged(preset, file, flags)
    config = encode(decode(merged, Config()))
    named = {section: fields for section, fields in merged.items() if isinstance(fields, Mapping)}
    return {
        section: {field: value for field, value in fields.items() if field in named[section]}
        for section, fields in config.items()
        if named.get(section)
    }


def import_env_module(
    preset: Tree | None, file: Path | None, flags: Mapping[str, Mapping[str, object]], id_given: bool = False
) -> Mapping[str, Mapping[str, object]]:
    """Import the module that the flags name in `env.module`, and return the flags with the environment to train on.

    If neither a tree nor the caller (`id_given`) names an environment, that is the only one which the module registers. Raises
    ValueError as `load` and `import_registered` do.
    """
    module = load(preset, file, flags).env.module
    if module is None or id_given or "id" in written(preset, file, flags).get("env", {}):
        import_environments(module)
        return flags
    return {**flags, "env": {**flags.get("env", {}), "id": import_registered(module, EnvConfig.id)}}


def _merged(preset: Tree | None, file: Path | None, flags: Tree) -> dict[str, object]:
    given = _nested(read(file), file) if file is not None else {}
    for tree in (preset or {}, given):
        _check_module(tree, flags)
    merged: dict[str, object] = {}
    for tree in (preset or {}, given, flags):
        for section, content in tree.items():
            below = merged.get(section)
            if section == "env" and isinstance(content, Mapping):
                below = _without_respelled(below, content)
            if isinstance(below, Mapping) and isinstance(content, Mapping):
                content = {**below, **content}
            merged[section] = below if content is None and section in merged else content
    return _in_steps(merged)


def _in_steps(merged: dict[str, object]) -> dict[str, object]:
    """The merged tree, with a budget that a gin file gives in iterations converted to environment steps."""
    run = merged.get("run")
    total = run.get("total_steps") if isinstance(run, Mapping) else None
    if not isinstance(run, Mapping) or not isinstance(total, Iterations):
        return merged
    others = {name: value for name, value in run.items() if name != "total_steps"}
    config = decode({**merged, "run": others}, Config())
    if config.env.per_rank is not None:
        raise ValueError(
            f"env.per_rank is {config.env.per_rank}: train.num_iter needs env.count, which depends on the ranks; "
            "give run.total_steps instead"
        )
    return {**merged, "run": {**run, "total_steps": total.number * config.env.count * config.rollout.steps}}


def _nested(tree: Tree, file: Path) -> dict[str, object]:
    """The tree with every dotted key, such as `ppo.clip`, moved into its section. Raises ValueError for a field given in both spellings."""
    nested: dict[str, object] = {}
    dotted: list[tuple[str, str, object]] = []
    for key, value in tree.items():
        section, _, field = str(key).partition(".")
        if field and section in known_sections():
            dotted.append((section, field, value))
        else:
            nested[key] = value
    for section, field, value in dotted:
        fields = {} if nested.get(section) is None else nested[section]
        if not isinstance(fields, Mapping):  # an error of its own, which `decode` reports
            continue
        if field in fields:
            raise ValueError(f"{file}: {section}.{field} is given twice")
        nested[section] = {**fields, field: value}
    return nested


def _check_module(tree: Tree, flags: Tree) -> None:
    """A file may have been written by anybody, so it makes nobody import anything."""
    (module, typed) = (
        env.get("module") if isinstance(env := part.get("env"), Mapping) else None for part in (tree, flags)
    )
    if module is not None and typed is None:
        raise ValueError(
            f"env.module is {module!r}: a file can't have a module imported; give --env.module on the command line, if you trust it"
        )


def _without_respelled(below: object, above: Tree) -> object:
    spellings = {"count", "per_rank"}
    given = {name for name in spellings if above.get(name) is not None}
    if len(given) > 1:
        raise ValueError(
            f"env.per_rank is {above['per_rank']!r}: it is another spelling of env.count, which is given too; keep one"
        )
    if not given or not isinstance(below, Mapping):
        return below
    return {name: value for name, value in below.items() if name not in spellings}

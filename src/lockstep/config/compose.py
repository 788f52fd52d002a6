"""Compose a config from its sources: defaults < preset < file < flags."""

from collections.abc import Mapping
from pathlib import Path

from lockstep.config import VERSION, Config
from lockstep.config.decode import check_keys, decode, encode, known_sections
from lockstep.config.files import read
from lockstep.config.flags import MODULES
from lockstep.config.gin_aliases import Iterations
from lockstep.config.task_fields import DroppedField, drop_task_fields
from lockstep.config.versions import former_defaults
from lockstep.envs.modules import import_environments, import_registered
from lockstep.envs.settings import EnvConfig

__all__ = ["dropped_fields", "import_env_module", "load", "merged_tree"]

Tree = Mapping[str, object]


def load(preset: Tree | None, file: Path | None, flags: Tree) -> Config:
    """Return the config of a preset, a file and flags. Later sources override earlier ones, field by field.

    `env.count` and `env.per_rank` are two spellings of one setting: a source that sets one of them removes the value
    that an earlier source gave to the other. A source that sets another `env.id` removes the fields that earlier
    sources set for their environment only, such as `run.solved_return`; `dropped_fields` names them.

    Raises ValueError, with a one-line message, if a source is invalid.
    """
    return _decode_merged(preset, file, flags)[1]


def dropped_fields(preset: Tree | None, file: Path | None, flags: Tree) -> list[str]:
    """Return a note for each field that `load` drops because a later source sets another environment.

    Fields that a later source sets again are left out. Raises ValueError as `load` does.
    """
    merged, dropped = _merge_sources(preset, file, flags)
    fields = {section: content for section, content in merged.items() if isinstance(content, Mapping)}
    return [field.note() for field in dropped if field.field not in fields.get(field.section, {})]


def merged_tree(preset: Tree | None, file: Path | None, flags: Tree) -> dict[str, dict[str, object]]:
    """Merge the three sources into one tree: all fields that a source sets, with the values that `load` gives them.

    Raises ValueError as `load` does.
    """
    merged, decoded = _decode_merged(preset, file, flags)
    config = encode(decoded)
    merged_fields = {section: fields for section, fields in merged.items() if isinstance(fields, Mapping)}
    return {
        section: {field: value for field, value in fields.items() if field in merged_fields[section]}
        for section, fields in config.items()
        if merged_fields.get(section)
    }


def import_env_module(
    preset: Tree | None,
    file: Path | None,
    flags: Mapping[str, Mapping[str, object]],
    id_given: bool = False,
    example: str | None = None,
) -> Mapping[str, Mapping[str, object]]:
    """Import the module that the flags name in `env.module`, and return the flags with the environment to train on.

    If no source sets `env.id` and the caller does not provide it either (`id_given`), use the only environment that the
    module registers. Raises ValueError as `load`, `import_environments` and `import_registered` do, and if there is
    neither an environment nor a module and the preset is for a family of environments, with `example` as one of them.
    """
    module = load(preset, file, flags).env.module
    id_given = id_given or "id" in merged_tree(preset, file, flags).get("env", {})
    if module is None and example is not None and not id_given:
        raise ValueError(
            f"--env is missing: the preset is for a family of environments; choose one, such as --env {example}"
        )
    if module is None or id_given:
        import_environments(module)
        return flags
    return {**flags, "env": {**flags.get("env", {}), "id": import_registered(module, EnvConfig.id)}}


def _decode_merged(preset: Tree | None, file: Path | None, flags: Tree) -> tuple[dict[str, object], Config]:
    """Merge and decode the three sources. The message about an invalid value of the file names the file."""
    merged, _ = _merge_sources(preset, file, flags)
    try:
        return merged, decode(merged, Config())
    except ValueError as error:
        name = str(error).split(" ", 1)[0]
        if file is None or _sets(flags, name) or not _sets(_nest_dotted_keys(read(file).tree, file), name):
            raise
        raise ValueError(f"{file}: {error}") from None


def _sets(tree: Tree, name: str) -> bool:
    """Return True if a tree sets a section or a field that is named `SECTION` or `SECTION.FIELD`."""
    section, _, field = name.partition(".")
    content = tree.get(section)
    return field in content if field and isinstance(content, Mapping) else not field and content is not None


def _merge_sources(preset: Tree | None, file: Path | None, flags: Tree) -> tuple[dict[str, object], list[DroppedField]]:
    """Merge the trees of the three sources, later ones over earlier ones, without decoding their values.

    Return the merged tree, and the fields that were dropped because a later source sets another environment.
    """
    version, file_content = read(file) if file is not None else (VERSION, {})
    file_tree = _nest_dotted_keys(file_content, file)
    try:
        check_keys(file_tree)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from None
    for tree in (preset or {}, file_tree):
        _check_modules(tree, flags)
    merged: dict[str, object] = {**former_defaults(version)}
    dropped: list[DroppedField] = []
    for tree in (preset or {}, file_tree, flags):
        merged, dropped_by_tree = drop_task_fields(merged, tree)
        dropped += dropped_by_tree
        for section, content in tree.items():
            earlier = merged.get(section)
            if section == "env" and isinstance(content, Mapping):
                earlier = _drop_respelled_count(earlier, content)
            if isinstance(earlier, Mapping) and isinstance(content, Mapping):
                content = {**earlier, **content}
            # None is a section without fields, such as a line `ppo:` in YAML; it changes nothing
            merged[section] = earlier if content is None and section in merged else content
    return _convert_iterations(merged), dropped


def _convert_iterations(merged: dict[str, object]) -> dict[str, object]:
    """Convert a budget that a gin file gives in iterations to environment steps.

    Raises ValueError if env.per_rank is set.
    """
    run = merged.get("run")
    total = run.get("total_steps") if isinstance(run, Mapping) else None
    if not isinstance(run, Mapping) or not isinstance(total, Iterations):
        return merged
    other_fields = {name: value for name, value in run.items() if name != "total_steps"}
    config = decode({**merged, "run": other_fields}, Config())
    if config.env.per_rank is not None:
        raise ValueError(
            f"env.per_rank is {config.env.per_rank}: train.num_iter needs env.count, which depends on the ranks; "
            "give run.total_steps instead"
        )
    return {**merged, "run": {**run, "total_steps": total.number * config.env.count * config.rollout.steps}}


def _nest_dotted_keys(tree: Tree, file: Path | None) -> dict[str, object]:
    """Move every dotted key, such as `ppo.clip`, into its section.

    Raises ValueError if a field is given in both spellings.
    """
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
        if not isinstance(fields, Mapping):  # `decode` raises ValueError for this section
            continue
        if field in fields:
            raise ValueError(f"{file}: {section}.{field} is given twice")
        nested[section] = {**fields, field: value}
    return nested


def _check_modules(tree: Tree, flags: Tree) -> None:
    """Raise ValueError if a preset or a file names a module and the flags do not.

    Importing runs code, and a file may come from an untrusted author, so only flags, which the user or the program
    gives, may name a module.
    """
    for section, field in MODULES:
        fields, given = tree.get(section), flags.get(section)
        named = fields.get(field) if isinstance(fields, Mapping) else None
        if named is not None and not (isinstance(given, Mapping) and field in given):
            raise ValueError(
                f"{section}.{field} is {named!r}: a config file can't import modules; pass --{section}.{field} on the command line "
                "if you trust it"
            )


def _drop_respelled_count(earlier: object, later: Tree) -> object:
    """Return the earlier fields of section `env`, without `count` and `per_rank` if the later source sets one of them.

    Raises ValueError if the later source sets both.
    """
    spellings = {"count", "per_rank"}
    given_spellings = {name for name in spellings if later.get(name) is not None}
    if len(given_spellings) > 1:
        raise ValueError(
            f"env.per_rank is {later['per_rank']!r}: it is an alternative to env.count, which is set too; remove one of the two"
        )
    if not given_spellings or not isinstance(earlier, Mapping):
        return earlier
    return {name: value for name, value in earlier.items() if name not in spellings}

"""Comparison of two configs: whether they define the same experiment."""

from lockstep.config import Config
from lockstep.config.decode import encode
from lockstep.config.fields import RESUMABLE_FIELDS, RUN_FIELDS

__all__ = ["describe_difference", "experiment"]

_IGNORED = {*RESUMABLE_FIELDS, *RUN_FIELDS, "runtime.compile"} - {"env.engine"}
"""Fields in which runs of the same experiment may differ. `runtime.compile` is among them: it is decided when the run is created."""


def experiment(config: Config) -> dict[str, object]:
    """Return the fields that define the experiment, by `section.field`."""
    tree = encode(config).items()
    fields = {f"{section}.{field}": value for section, content in tree for field, value in content.items()}
    return {path: value for path, value in fields.items() if path not in _IGNORED}


def describe_difference(existing: Config, requested: Config) -> str | None:
    """Return a text about the first field in which two resolved configs define different experiments; None: they are the same."""
    before, after = experiment(existing), experiment(requested)
    # the plan first: other choices follow from the number of shards
    paths = sorted(after, key=lambda path: not path.startswith("plan."))
    path = next((path for path in paths if before[path] != after[path]), None)
    return None if path is None else f"{path} is {after[path]!r}: it was {before[path]!r}"

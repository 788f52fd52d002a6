"""Fields that hold for one environment only: they are dropped when a later source sets another `env.id`."""

from collections.abc import Mapping
from typing import NamedTuple

__all__ = ["DroppedField", "drop_task_fields"]

_TASK_FIELDS = (
    ("env", "options"),
    ("env", "wrappers"),
    ("env", "info_metrics"),
    ("run", "solved_return"),
    ("run", "stop_at_return"),
)
"""A goal is on the scale of one environment's returns, options are keyword arguments of one environment's constructor,
and wrappers and `info` are those of one environment. Budgets, engines and hyperparameters stay: they may suit another environment."""


class DroppedField(NamedTuple):
    """A field that was dropped because a later source sets another `env.id`."""

    section: str
    field: str
    value: object
    first_id: str
    """Environment for which the field was set."""
    later_id: str
    """Environment of the later source."""

    def note(self) -> str:
        """Return a line for the user."""
        name = f"{self.section}.{self.field}"
        return (
            f"{name} {self.value} is dropped: it was set for {self.first_id}, and env.id is {self.later_id}; "
            f"set {name} again if {self.later_id} needs one"
        )


def drop_task_fields(
    earlier: Mapping[str, object], later: Mapping[str, object]
) -> tuple[dict[str, object], list[DroppedField]]:
    """Return the tree of the earlier sources without the fields that hold for its environment only, and these fields.

    If the trees do not set different environments, return `earlier` unchanged. Fields without a value (None, no
    options) are dropped silently.
    """
    first_id, later_id = _env_id(earlier), _env_id(later)
    tree = dict(earlier)
    dropped: list[DroppedField] = []
    if first_id is None or later_id is None or first_id == later_id:
        return tree, dropped
    for section, field in _TASK_FIELDS:
        fields = tree.get(section)
        if isinstance(fields, Mapping) and field in fields:
            tree[section] = {name: value for name, value in fields.items() if name != field}
            if fields[field] not in (None, {}, [], ()):
                dropped.append(DroppedField(section, field, fields[field], first_id, later_id))
    return tree, dropped


def _env_id(tree: Mapping[str, object]) -> str | None:
    env = tree.get("env")
    env_id = env.get("id") if isinstance(env, Mapping) else None
    return env_id if isinstance(env_id, str) else None  # `decode` raises ValueError for another type

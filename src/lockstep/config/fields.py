"""Classification of the fields of the config that are not part of the experiment: what may change at resume, between ranks, and in sweeps.

A field that is not listed here is part of the experiment: it stays as it is at resume, is the same on all ranks, and may be swept.
"""

from enum import Flag, auto

__all__ = ["LOCAL_FIELDS", "NEVER_SWEPT_FIELDS", "RESUMABLE_FIELDS", "RUN_FIELDS"]


class _Kind(Flag):
    RESUMABLE = auto()
    """The field may change at resume."""
    LOCAL = auto()
    """The field may differ between the ranks of a run. (`runtime/devices.py` compares the devices.)"""
    NEVER_SWEPT = auto()
    """A sweep can't have several values of the field."""
    OF_RUN = auto()
    """The field belongs to one run: runs that differ in it are of the same experiment."""


_ANYWHERE = _Kind.RESUMABLE | _Kind.LOCAL
_KINDS = {
    "plan.kind": _Kind.RESUMABLE,
    "plan.players": _Kind.RESUMABLE,
    "plan.trainers": _Kind.RESUMABLE,
    "runtime.kind": _Kind.RESUMABLE,
    # another device may round differently, but a host may have no other
    "runtime.device": _ANYWHERE,
    "runtime.player_device": _ANYWHERE,
    "runtime.backend": _Kind.RESUMABLE,
    "runtime.rendezvous": _ANYWHERE,
    "runtime.timeout": _ANYWHERE,
    "run.progress": _ANYWHERE | _Kind.NEVER_SWEPT,
    "run.log_every": _ANYWHERE | _Kind.NEVER_SWEPT,
    "run.loggers": _ANYWHERE,
    "run.capture_video": _ANYWHERE,
    "run.evaluate_every": _Kind.RESUMABLE,
    "run.evaluate_episodes": _ANYWHERE,
    "run.hooks": _ANYWHERE | _Kind.NEVER_SWEPT,
    "run.store": _ANYWHERE | _Kind.NEVER_SWEPT,
    "run.keep": _Kind.LOCAL,
    "run.folder": _Kind.LOCAL | _Kind.NEVER_SWEPT | _Kind.OF_RUN,
    "run.name": _Kind.LOCAL | _Kind.NEVER_SWEPT | _Kind.OF_RUN,
    "env.module": _Kind.RESUMABLE | _Kind.NEVER_SWEPT,
    "env.engine": _Kind.RESUMABLE,  # between engines with the same episodes
    "env.timeout": _ANYWHERE,
    "env.on_fault": _Kind.RESUMABLE,
    "env.max_faults": _ANYWHERE,
}


def _fields(kind: _Kind) -> tuple[str, ...]:
    return tuple(path for path, kinds in _KINDS.items() if kind in kinds)


RESUMABLE_FIELDS = _fields(_Kind.RESUMABLE)
"""Fields that may change at resume, because they do not change the experiment. `env.engine` may change between `SAME_EPISODES`."""
LOCAL_FIELDS = _fields(_Kind.LOCAL)
"""Fields that may differ between ranks."""
NEVER_SWEPT_FIELDS = _fields(_Kind.NEVER_SWEPT)
"""Fields of which a sweep can't have several values."""
RUN_FIELDS = _fields(_Kind.OF_RUN)
"""Fields that may differ between runs of the same experiment."""

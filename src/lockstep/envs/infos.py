"""Numbers that environments return in `info` at the end of episodes, and which `env.info_metrics` names."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.envs.layout import ContractViolation

__all__ = ["EPISODE_INFO", "Entry", "batch_values", "episode_values"]

EPISODE_INFO = "episode_info"
"""Key under which a single environment passes the numbers `[K]` on at the end of an episode."""
_LISTED = 12
"""Largest number of names in an error message."""


class Entry(Mapping[str, Any]):
    """The `info` of one environment of a batch. `infos` has an array per name and, in Gymnasium, a mask per name under `_name`.

    Values may be mappings of this kind, and tuples of arrays.
    """

    def __init__(self, infos: Mapping[str, Any], index: int) -> None:
        self._infos = infos
        self._index = index

    def __getitem__(self, name: str) -> Any:
        if not self._has(name):
            raise KeyError(name)
        return self._entry(self._infos[name])

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._infos if not name.startswith("_") and self._has(name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _has(self, name: str) -> bool:
        mask = self._infos.get(f"_{name}")
        return mask is None or bool(mask[self._index])

    def _entry(self, values: Any) -> Any:
        if isinstance(values, Mapping):
            return dict(Entry(values, self._index))
        if isinstance(values, tuple):
            return tuple(map(self._entry, values))
        return values[self._index] if np.ndim(values) else values


def episode_values(names: Sequence[str], info: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the numbers `[K]` of an `info`. NaN: the environment has no number for this episode.

    Raises ContractViolation if a name is missing, or its value is not a number or is infinite.
    """
    return np.array([_number(name, info) for name in names], dtype=np.float64)


def batch_values(names: Sequence[str], infos: Mapping[str, Any], ended: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the numbers `[B, K]` of the `infos` of a batch of environments, NaN where no episode has `ended`, `[B]` bool.

    Raises ContractViolation as `episode_values` does.
    """
    values = np.full((len(ended), len(names)), np.nan)
    for index in np.flatnonzero(ended).tolist():
        values[index] = episode_values(names, Entry(infos, index))
    return values


def _number(name: str, info: Mapping[str, Any]) -> float:
    if name not in info:
        present = sorted(map(str, info))
        listed = ", ".join(present[:_LISTED]) + (", …" if len(present) > _LISTED else "")
        raise ContractViolation(
            f"returned no {name!r} in info at the end of an episode, which env.info_metrics names; info has {listed or 'nothing'}"
        )
    value = np.asarray(info[name])
    if value.size != 1 or value.dtype.kind not in "biuf" or np.isinf(value.item()):
        raise ContractViolation(
            f"returned {name} = {info[name]!r:.60} in info, which env.info_metrics names: it must be a finite number or NaN"
        )
    return float(value.item())

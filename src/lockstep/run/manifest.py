"""The manifest of a checkpoint, state.json, with the SHA-256 of every file, which detects damaged checkpoints. This module imports no PyTorch.

`files` has the hashes of the other files, and `sha256` that of state.json itself: of its other entries, as JSON with sorted keys. In
checkpoints of version 1 state.json has no hash.
"""

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

from lockstep.files import WEIGHTS_LIMIT, open_regular, read_file
from lockstep.processes.heartbeat import keep_alive
from lockstep.run.folder import RunFolder

__all__ = [
    "STATE",
    "CheckpointDamaged",
    "FoundCheckpoint",
    "encode_state",
    "hash_file",
    "is_whole_number",
    "newest_intact",
    "return_at",
    "verify",
    "with_advice",
]

STATE, _AGENT = "state.json", "agent.safetensors"
_VERSION = 2
_FILE = re.compile(r"\w[\w.-]*", re.ASCII)
"""Names of files in a checkpoint, which can't refer to another folder."""
_BLOCK = 2**20


class CheckpointDamaged(ValueError):
    """A file of a checkpoint is missing, truncated, changed or not readable, or holds weights that are not finite."""


def encode_state(counters: Mapping[str, object], hashes: Mapping[str, str]) -> bytes:
    """Return the content of state.json: `counters`, with `iteration`, and the SHA-256 of the other files by name."""
    state = {**counters, "version": _VERSION, "files": dict(hashes)}
    return f"{json.dumps({**state, 'sha256': _digest(state)}, indent=2)}\n".encode()


def verify(path: Path) -> dict[str, object]:
    """Compare all files of a checkpoint with their hashes, and return the content of its state.json.

    Raises CheckpointDamaged, naming the file, and ValueError for a newer version.
    """
    state = _read_manifest(path)
    files = state["files"]
    assert isinstance(files, dict)
    if path.name.isdecimal() and int(path.name) != state["iteration"]:
        raise CheckpointDamaged(f"checkpoint {path}: {STATE} is that of iteration {state['iteration']}")
    if _AGENT not in files:
        raise CheckpointDamaged(f"checkpoint {path}: {STATE} does not list {_AGENT}")
    for name, expected in files.items():
        if not _matches(path / name, expected):
            raise CheckpointDamaged(f"checkpoint {path}: {name} is missing, truncated or changed")
    return state


def return_at(path: Path) -> float | None:
    """Return the mean of the last 20 training returns at a checkpoint; None before 20 episodes ended, and if it can't be read."""
    try:
        mean = _read_manifest(path).get("return_mean_20")
    except ValueError:
        return None
    return mean if isinstance(mean, float) and math.isfinite(mean) else None


def with_advice(error: CheckpointDamaged, path: Path) -> CheckpointDamaged:
    """Add to the error of the checkpoint `path` which other one of its run can be used."""
    folder = RunFolder(path.parent.parent)
    found = newest_intact(
        folder, [number for number in folder.checkpoints() if folder.checkpoint(number).name != path.name]
    )
    advice = (
        f"use the newest intact checkpoint with --iteration {found.iteration}"
        if found.state
        else "no other checkpoint is intact"
    )
    return CheckpointDamaged(f"{error}; {advice}")


class FoundCheckpoint(NamedTuple):
    """Result of the search for the newest checkpoint that is intact."""

    iteration: int
    """Its iteration; 0 if there is none."""
    state: dict[str, object] | None
    """The content of its state.json; None if there is none."""
    damaged: list[CheckpointDamaged]
    """The errors of newer ones, the newest first."""


def newest_intact(folder: RunFolder, iterations: Iterable[int]) -> FoundCheckpoint:
    """Find the last of `iterations` whose checkpoint is intact. Raises ValueError for a newer version."""
    damaged: list[CheckpointDamaged] = []
    for iteration in sorted(iterations, reverse=True):
        try:
            return FoundCheckpoint(iteration, verify(folder.checkpoint(iteration)), damaged)
        except CheckpointDamaged as error:
            damaged.append(error)
    return FoundCheckpoint(0, None, damaged)


def _read_manifest(path: Path) -> dict[str, object]:
    """Read the state.json of a checkpoint, and compare it with its own hash. Raises ValueError as `verify` does."""
    try:
        state = json.loads(read_file(path / STATE))
    except (OSError, ValueError, RecursionError):
        state = None
    if not _is_manifest(state):
        raise CheckpointDamaged(f"checkpoint {path}: {STATE} is missing or broken")
    assert isinstance(state, dict)
    if state["version"] > _VERSION:
        raise ValueError(
            f"checkpoint {path} has version {state['version']}, newer than this lockstep reads ({_VERSION}): upgrade lockstep"
        )
    if state["version"] > 1 or "sha256" in state:
        content = {name: value for name, value in state.items() if name != "sha256"}
        if state.get("sha256") != _digest(content):
            raise CheckpointDamaged(f"checkpoint {path}: {STATE} was changed")
    return state


def _is_manifest(state: object) -> bool:
    if not isinstance(state, dict) or not all(is_whole_number(state.get(name)) for name in ("version", "iteration")):
        return False
    files = state.get("files")
    return isinstance(files, dict) and all(
        _FILE.fullmatch(name) and isinstance(expected, str) for name, expected in files.items()
    )


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file as hexadecimal digits. Raises OSError if it can't be read or is not a regular file."""
    digest = hashlib.sha256()
    with open_regular(path, WEIGHTS_LIMIT) as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            keep_alive()
    return digest.hexdigest()


def is_whole_number(value: object) -> bool:
    """Return True for an int that is at least 0 and fits 64 bits."""
    return type(value) is int and 0 <= value < 2**63


def _digest(state: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()


def _matches(path: Path, expected: object) -> bool:
    try:
        return hash_file(path) == expected
    except OSError:
        return False

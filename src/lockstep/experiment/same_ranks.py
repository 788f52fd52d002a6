"""Comparison of versions, config and arithmetic of all ranks, before they exchange tensors.

First the ranks compare one number. Only if it differs, they exchange the texts that say why.
"""

import hashlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lockstep.algorithm.exchange import leading_bits
from lockstep.config import Config
from lockstep.envs.spaces import Spaces
from lockstep.experiment.fingerprint import Fingerprint, describe_dispatch, make_fingerprint
from lockstep.group.group import Group
from lockstep.group.texts import exchange_texts
from lockstep.processes.heartbeat import beat
from lockstep.processes.host_name import host_name
from lockstep.run.folder import RunFolder

__all__ = [
    "RanksDiffer",
    "check_same_folder",
    "check_same_kernels",
    "check_same_spaces",
    "check_same_start",
    "compare_fingerprints",
]

_SIZES = (
    "numbers per observation",
    "bytes of images per observation",
    "choices per action",
    "continuous components per action",
)
"""Sizes that ranks compare, besides the digest."""


_FOLDER_TIMEOUT = 30.0
"""Seconds after which a network file system has shown a new folder to all hosts, at the latest."""
_POLL = 0.1
_SHARED = ".shared-"
"""Start of the name of the file by which ranks recognize the run folder of rank 0."""


class RanksDiffer(ValueError):
    """Two ranks would not train the same experiment with the same bits, or not in the same folder. All ranks raise it together."""


def check_same_start(group: Group, config: Config) -> None:
    """Raise RanksDiffer, in one line, on all ranks if versions, source files, config or arithmetic differ between ranks of the group."""
    if group.size > 1:
        compare_fingerprints(group, make_fingerprint(config))


def check_same_folder(group: Group, folder: RunFolder, timeout: float) -> None:
    """Raise RanksDiffer, in one line, on all ranks if one of them does not see the run folder of rank 0, in which all write checkpoints.

    Rank 0 creates a file with a random name for the others: a host may have a copy of the run folder. `timeout` is `runtime.timeout`. A network
    file system may show a new file late, so a rank looks for it for half of that time.
    """
    if group.size == 1:
        return
    number = int(group.gather(torch.tensor([[secrets.randbits(52)]]), "start")[0, 0])
    file = folder.path / f"{_SHARED}{number}"
    try:
        if group.rank == 0:
            file.touch()
        deadline = time.monotonic() + min(timeout / 2, _FOLDER_TIMEOUT)
        while not file.exists() and time.monotonic() < deadline:
            beat()
            time.sleep(_POLL)
        is_missing = not file.exists()
        if not bool(group.gather(torch.tensor([[is_missing]]), "start").any()):
            return
    finally:
        if group.rank == 0:
            for remains in folder.path.glob(f"{_SHARED}*"):  # also of a start that was killed
                remains.unlink(missing_ok=True)
    hosts = exchange_texts(group, host_name() if is_missing else "", "start")
    rank, host = next((rank, host) for rank, host in enumerate(hosts) if host)
    raise RanksDiffer(
        f"{folder} on {host}, the host of rank {rank}, is not the folder of rank 0: it must be on a file system that all hosts of the run "
        "share; choose such a folder with --out"
    )


def check_same_kernels(group: Group, digest: str) -> None:
    """Raise RanksDiffer, in one line, on all ranks if the `digest` of what kernels compute differs. It is empty on ranks without kernels."""
    if group.size > 1:
        compare_fingerprints(group, {"bits": {"its kernels": digest} if digest else {}})


def compare_fingerprints(group: Group, fingerprint: Fingerprint) -> None:
    """Raise RanksDiffer, in one line, on all ranks if a value differs between two ranks. A value that only some ranks have does not count."""
    number = leading_bits(hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest())
    if len(set(group.gather(torch.tensor([[number]]), "start")[:, 0].tolist())) == 1:
        return
    about = {"host": host_name(), "dispatch": describe_dispatch()}
    line = _describe_difference(
        [json.loads(text) for text in exchange_texts(group, json.dumps({**fingerprint, **about}), "start")]
    )
    if line is not None:
        raise RanksDiffer(line)


def check_same_spaces(group: Group, spaces: Spaces, env_id: str) -> None:
    """Raise RanksDiffer, in one line, on all ranks if `spaces` is not the same on all ranks of the group."""
    sizes = (spaces.observation_size, spaces.pixel_count, len(spaces.choices), spaces.continuous_size)
    text = repr((sizes, spaces.choices, spaces.images, spaces.mask_size))
    content = text.encode() + spaces.action_low.tobytes() + spaces.action_high.tobytes()
    bits = leading_bits(hashlib.sha256(content).hexdigest())
    first, *others = group.gather(torch.tensor([[*sizes, bits]], dtype=torch.float64), "start").tolist()
    for rank, other in enumerate(others, 1):
        if other != first:
            raise RanksDiffer(
                f"env.id is {env_id!r}: rank {rank} has other spaces than rank 0 ({_difference(other, first)}); the environment, "
                "its wrappers and the versions of its packages must be the same on all ranks"
            )


def _difference(row: Sequence[float], first: Sequence[float]) -> str:
    sizes = zip(_SIZES, row, first, strict=False)
    found = [f"{size:g} instead of {expected:g} {name}" for name, size, expected in sizes if size != expected]
    return ", ".join(found) or "other bounds, options or shapes"


def _describe_difference(ranks: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a line about the first difference between two ranks; None if each value is the same on all ranks that have it."""
    for kind in ("version", "source", "config", "bits"):
        seen: dict[str, int] = {}
        for rank, facts in enumerate(ranks):
            for name, value in facts.get(kind, {}).items():
                first = seen.setdefault(name, rank)
                if value != ranks[first][kind][name]:
                    return _line(kind, name, (rank, facts), (first, ranks[first]))
    return None


_Rank = tuple[int, Mapping[str, Any]]
"""The number of a rank, and its values by kind and name."""


def _line(kind: str, name: str, one: _Rank, other: _Rank) -> str:
    (rank, facts), (first, expected) = one, other
    here, there = f"rank {rank} on host {facts['host']}", f"rank {first} on host {expected['host']}"
    value, right = (side.get(kind, {}).get(name) for side in (facts, expected))
    if kind == "version":
        return f"{here} has {name} {value}, but {there} has {right}; install the same versions on all hosts"
    if kind == "config":
        return f"{name} is {value} on {here}, but {right} on {there}; start all ranks with the same config"
    if kind == "source":
        module, _, path = name.partition(": ")
        return f"{here} has another {path} of the module {module} than {there}; all hosts need the same files"
    reason = next(
        (
            f"{name} is {facts['dispatch'].get(name)} on rank {rank}, {setting} on rank {first}"
            for name, setting in expected["dispatch"].items()
            if facts["dispatch"].get(name) != setting
        ),
        "the processors and environment variables are the same, so the libraries were built or compiled differently",
    )
    return f"{here} computes different bits in {name} than {there}: {reason}"

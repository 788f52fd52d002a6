"""Hostile run folders: changes to a run as lockstep writes it, by name."""

import io
import json
import os
import pickle
import socket
import struct
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import safetensors.torch
import torch

from lockstep.run.folder import RunFolder
from lockstep.run.manifest import encode_state, hash_file

Change = Callable[[Path], None]
"""Change of a run folder. The folder beside it, `outside`, holds files that belong to the user."""

JSON_FILES = (
    "config.json",
    "environment.json",
    "metrics.jsonl",
    "starts.jsonl",
    "evaluations.jsonl",
    "best.json",
    "evaluation.json",
)
CHECKPOINT_FILES = ("state.json", "agent.safetensors")
CONTENTS: dict[str, bytes] = {
    "empty": b"",
    "bad-utf8": b'{"iteration": 1, "x": "\xff\xfe"}\n' * 2,
    "deep": b"[" * 200_000 + b"\n",
    "null": b"null\n",
    "list": b"[1, 2]\n",
    "numbers": b'{"version": 1, "iteration": Infinity, "files": NaN, "env": -1, "returns": [1e999], "lengths": [NaN]}\n',
    "huge-number": b'{"version": 1, "iteration": 1' + b"0" * 5000 + b"}\n",
    "zeros": bytes(100_000),
}


def newest_checkpoint(run: Path) -> Path:
    """Return the newest checkpoint of a run."""
    folder = RunFolder(run)
    return folder.checkpoint(folder.checkpoints()[-1])


def replace(name: str, make: Change) -> Change:
    """Return a change that removes a file of the run, or of its newest checkpoint, and calls `make` with its path."""

    def change(run: Path) -> None:
        path = newest_checkpoint(run) / name if name in CHECKPOINT_FILES else run / name
        path.unlink(missing_ok=True)
        make(path)

    return change


def write(content: bytes) -> Change:
    """Return a function that writes a file with this content."""
    return lambda path: path.write_bytes(content) and None


def make_socket(path: Path) -> None:
    """Create a socket in the file system."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)  # the path of a socket has at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def make_sparse(path: Path) -> None:
    """Create a file that claims to have a terabyte."""
    with path.open("wb") as file:
        file.truncate(2**40)


KINDS: dict[str, Change] = {
    "fifo": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "folder": Path.mkdir,
    "socket": make_socket,
    "terabyte": make_sparse,
    "loop": lambda path: path.symlink_to(path.name),
}


def with_agent(content: bytes) -> Change:
    """Return a change that replaces the weights of the newest checkpoint, with all hashes, as an attacker would."""

    def change(run: Path) -> None:
        checkpoint = newest_checkpoint(run)
        (checkpoint / "agent.safetensors").write_bytes(content)
        with_state(lambda state: state)(run)

    return change


def with_state(edit: Callable[[dict[str, object]], dict[str, object]]) -> Change:
    """Return a change of the state.json of the newest checkpoint, with all hashes."""

    def change(run: Path) -> None:
        checkpoint = newest_checkpoint(run)
        state = json.loads((checkpoint / "state.json").read_text())
        del state["sha256"]
        hashes = {path.name: hash_file(path) for path in checkpoint.glob("*.safetensors")}
        edited = edit(state)
        files = edited.pop("files") if edited.get("files") != state.get("files") else hashes
        (checkpoint / "state.json").write_bytes(encode_state({**edited}, files))  # type: ignore[arg-type]

    return change


class Canary:
    """Object that creates the file `unpickled` when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (Path("unpickled"),)


def zip_bomb() -> bytes:
    """Return an .npz file of some kilobytes that expands to a gigabyte."""
    buffer = io.BytesIO()
    with (
        zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w", force_zip64=True) as file,
    ):
        np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": (2**30,)})
        for _ in range(16):
            file.write(bytes(2**20))  # enough: nothing may expand it
    return buffer.getvalue()


def torch_file() -> bytes:
    """Return what torch.save writes, with an object that creates a file when it is loaded."""
    buffer = io.BytesIO()
    torch.save({"a": Canary()}, buffer)
    return buffer.getvalue()


def safetensors_file(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file with this header, or with a header that claims another length."""
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape: list[int], end: int, kind: str = "F32") -> dict[str, object]:
    """Return an entry of the header of a safetensors file."""
    return {"dtype": kind, "shape": shape, "data_offsets": [0, end]}


AGENTS: dict[str, Callable[[], bytes]] = {
    "pickle": lambda: pickle.dumps(Canary()),
    "torch-save": torch_file,
    "zip-bomb": zip_bomb,
    "header-longer-than-file": lambda: safetensors_file({}, length=2**40),
    "header-of-100-megabytes": lambda: struct.pack("<Q", 99_000_000) + b" " * 99_000_000,
    "truncated-data": lambda: safetensors_file({"policy.a": entry([1000], 4000)}, bytes(10)),
    "overlapping": lambda: safetensors_file({"a": entry([1], 4), "b": entry([1], 4)}, bytes(4)),
    "overflow": lambda: safetensors_file({"a": entry([2**62, 2**62], 4)}, bytes(4)),
    "unknown-type": lambda: safetensors_file({"a": entry([1], 4, "PICKLE")}, bytes(4)),
    "other-tensors": lambda: safetensors.torch.save({"a": torch.zeros(1000)}),
    "many-tensors": lambda: safetensors.torch.save({f"policy.{index}": torch.zeros(1) for index in range(10_000)}),
}


def with_rows(*rows: str) -> Change:
    """Return a change that inserts lines after the first line of metrics.jsonl."""

    def change(run: Path) -> None:
        first, *others = (run / "metrics.jsonl").read_text().splitlines()
        (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in (first, *rows, *others)))

    return change


def link_to_outside(name: str) -> Change:
    """Return a change that puts a link to a file or folder of the user under the name of a file or folder of the run."""

    def change(run: Path) -> None:
        path, target = run / name, run.parent / "outside"
        if path.is_dir():
            path.rename(run / "moved")
        path.unlink(missing_ok=True)
        path.symlink_to(target if "." not in name else target / "file")

    return change


CONFIG_FIELDS: dict[str, tuple[str, str, object]] = {
    "hidden-layers": ("policy", "hidden", [1] * 200_000),
    "head-layers": ("policy", "head_hidden", [16] * 200_000),
    "shards": ("plan", "shards", 10**9),
    "ranks": ("plan", "kind", "999999:999999"),
    "threads": ("runtime", "threads", 10**9),
    "environment-threads": ("env", "threads", 10**9),
    "environments": ("env", "count", 10**9),
    "name": ("run", "name", "../../outside"),
    "module": ("env", "module", "os"),
    "hook": ("run", "hooks", "os:abort"),
    "steps": ("run", "total_steps", 10**400),
    "nan": ("ppo", "gamma", float("nan")),
    "text": ("ppo", "learning_rate", "__import__('os')"),
}


def with_field(section: str, name: str, value: object) -> Change:
    """Return a change of one field of config.json."""

    def change(run: Path) -> None:
        config = json.loads((run / "config.json").read_text())
        config[section][name] = value
        (run / "config.json").write_text(json.dumps(config))

    return change


def corpus() -> Iterator[tuple[str, Change]]:
    """Yield the name of every case and the change that makes it."""
    for name in (*JSON_FILES, *CHECKPOINT_FILES):
        for kind, make in KINDS.items():
            yield f"{name}-{kind}", replace(name, make)
    for name in (*JSON_FILES, "state.json"):
        for kind, content in CONTENTS.items():
            yield f"{name}-{kind}", replace(name, write(content))
    for name, content in AGENTS.items():
        yield f"agent-{name}", lambda run, content=content: with_agent(content())(run)
    for name, field in CONFIG_FIELDS.items():
        yield f"config-{name}", with_field(*field)
    for name, value in (
        ("iteration", -1),
        ("iteration", 10**30),
        ("env_steps", float("inf")),
        ("seconds", "1"),
        ("last_returns", {"a": 1}),
    ):
        yield f"state-{name}-{value!r:.5}", with_state(lambda state, name=name, value=value: {**state, name: value})
    for path in ("../../../outside/file", "/etc/passwd", "..", "a/b"):
        yield f"state-lists-{path}", with_state(lambda state, path=path: {**state, "files": {path: "0" * 64}})
    yield "metrics-broken-line", with_rows("{broken")
    yield "metrics-nested", with_rows('{"iteration": 1, "loss": {"a": [1]}}')
    yield (
        "metrics-wrong-types",
        with_rows('{"iteration": 1, "env_steps": "x", "seconds": [], "digest": 7}', '{"iteration": -5}'),
    )
    yield "metrics-long-line", with_rows('{"iteration": 1, "x": "' + "y" * 3_000_000 + '"}')
    for name in (
        "evaluation.json",
        "metrics.jsonl",
        "starts.jsonl",
        "tb",
        "checkpoints",
        ".config.json.partial",
        ".evaluation.json.partial",
    ):
        yield f"link-{name}", link_to_outside(name)

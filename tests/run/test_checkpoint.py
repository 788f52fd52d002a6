"""Checkpoints: complete writes, rotation, and errors for damaged files."""

import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch
from tests.threaded import on_ranks
from torch import Tensor

from lockstep.group.group import Group
from lockstep.group.solo import Solo
from lockstep.processes.heartbeat import Heartbeat, own_cells
from lockstep.run import checkpoint_writer
from lockstep.run.checkpoint import Checkpoint, SavedCounters
from lockstep.run.checkpoint_writer import (
    CheckpointFailed,
    CheckpointWriter,
    remove_checkpoints_after,
    remove_old_checkpoints,
)
from lockstep.run.folder import FolderLost, RunFolder
from lockstep.run.manifest import CheckpointDamaged, encode_state, hash_file

SHARDS = {
    0: {"ended": torch.tensor([True, False]), "running": torch.tensor([[1.5, torch.nan]], dtype=torch.float64)},
    1: {
        "ended": torch.tensor([False, False]),
        "engine.actions": torch.zeros(0, 2),
        "engine.lengths": torch.tensor([3]),
    },
}
BUFFER = torch.arange(6.0)
REST = {"agent": {"policy.a": BUFFER[:2], "policy.b": BUFFER[2:].view(2, 2)}, "optimizer": {"steps": torch.tensor([7])}}


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {}, {})


def write(folder: RunFolder, iteration: int, mean: float | None = None) -> Path:
    groups = {f"shard-{index:04d}": state for index, state in SHARDS.items()} | REST
    counters = {"env_steps": 4096, "solved_at": None, "returns": [0.1], "return_mean_20": mean}
    writer = CheckpointWriter(folder, Solo())
    writer.write(iteration, groups, counters)
    writer.wait()
    return folder.checkpoint(iteration)


def same_tensors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return found.keys() == expected.keys() and all(
        found[name].dtype == tensor.dtype
        and found[name].shape == tensor.shape
        and found[name].numpy().tobytes() == tensor.numpy().tobytes()
        for name, tensor in expected.items()
    )


def test_written_state_is_read_unchanged(folder: RunFolder) -> None:
    checkpoint = Checkpoint(write(folder, 50))
    assert folder.checkpoints() == [50]
    assert all(same_tensors(checkpoint.shard(index), state) for index, state in SHARDS.items())
    assert all(same_tensors(checkpoint.tensors(name), state) for name, state in REST.items())
    assert checkpoint.state["iteration"] == 50
    assert [checkpoint.state[name] for name in ("env_steps", "solved_at", "returns")] == [4096, None, [0.1]]


def test_checkpoint_has_only_safetensors_and_json_files(folder: RunFolder) -> None:
    names = {path.name for path in write(folder, 50).iterdir()}
    shards = {"shard-0000.safetensors", "shard-0001.safetensors"}
    assert names == {"agent.safetensors", "optimizer.safetensors", "state.json"} | shards


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", ["agent", "optimizer", "shard-0001"])
@pytest.mark.parametrize("damage", [flip, truncate, empty, Path.unlink])
def test_damaged_tensor_file_is_reported_in_one_line(
    folder: RunFolder, name: str, damage: Callable[[Path], None]
) -> None:
    path = write(folder, 50)
    damage(path / f"{name}.safetensors")
    with pytest.raises(
        ValueError, match=rf"{name}\.safetensors is missing, truncated or changed; no other checkpoint is intact$"
    ) as caught:
        Checkpoint(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        None,
        "",
        "{",
        "[]",
        "7",
        '"files"',
        "{}",
        "[" * 100_000,
        '{"version": 1}',
        '{"version": "x", "files": {}}',
        "\x00" * 100,
        *(
            f'{{"version": {version}, "iteration": {iteration}, "files": {files}}}'
            for version, iteration, files in [
                ("Infinity", "50", "{}"),
                ("-Infinity", "50", "{}"),
                ("NaN", "50", "{}"),
                ("1e400", "50", "{}"),
                ("true", "50", "{}"),
                ("1.0", "50", "{}"),
                ("[[1]]", "50", "{}"),
                ("-1", "50", "{}"),
                ("1", "Infinity", "{}"),
                ("1", "null", "{}"),
                ("1", "50", "[]"),
                ("1", "50", '[["agent.safetensors", "00"]]'),
                ("1", "50", '{"agent.safetensors": 7}'),
                ("1", "50", '{"../agent.safetensors": "00"}'),
                ("1", "50", '{"..": "00"}'),
                ("1", "50", '{"a\\nb": "00"}'),
            ]
        ),
    ],
)
def test_damaged_state_file_is_reported_in_one_line(folder: RunFolder, content: str | None) -> None:
    path = write(folder, 50)
    state = path / "state.json"
    state.unlink() if content is None else state.write_text(content)
    with pytest.raises(ValueError, match=r"state\.json is missing or broken; no other checkpoint is intact$") as caught:
        Checkpoint(path)
    assert "\n" not in str(caught.value)


def test_files_that_the_state_does_not_list_are_refused(folder: RunFolder) -> None:
    path = write(folder, 50)
    state = json.loads((path / "state.json").read_text())
    del state["sha256"]
    (path / "state.json").write_bytes(encode_state(state, {}))
    with pytest.raises(
        ValueError, match=r"state\.json does not list agent\.safetensors; no other checkpoint is intact$"
    ):
        Checkpoint(path)
    (path / "state.json").write_bytes(encode_state(state, {"agent.safetensors": state["files"]["agent.safetensors"]}))
    checkpoint = Checkpoint(path)
    assert same_tensors(checkpoint.tensors("agent"), REST["agent"])
    with pytest.raises(ValueError, match=r"optimizer\.safetensors can't be read \(state\.json does not list it\)"):
        checkpoint.tensors("optimizer")  # the file exists, but no hash vouches for it


COUNTERS = {"iteration": 3, "env_steps": 4096, "seconds": 1.5, "solved_at": None, "last_returns": [1.0, -2.5]}


def test_valid_counters_are_decoded() -> None:
    assert SavedCounters.of(COUNTERS | {"files": {}}) == (3, 4096, 1.5, None, [1.0, -2.5], 0)
    assert SavedCounters.of(COUNTERS | {"solved_at": 7, "seconds": 2}).solved_at == 7


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("iteration", float("inf")),
        ("iteration", True),
        ("iteration", "3"),
        ("env_steps", -1),
        ("env_steps", 10**400),
        ("env_steps", None),
        ("seconds", float("nan")),
        ("seconds", "1"),
        ("seconds", 10**400),
        ("solved_at", [1]),
        ("last_returns", {}),
        ("last_returns", ["a"]),
        ("last_returns", [float("inf")]),
    ],
)
def test_invalid_counters_are_reported_in_one_line(name: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^{name} is .*: it must be a ") as caught:
        SavedCounters.of(COUNTERS | {name: value})
    assert len(str(caught.value)) < 200


def test_missing_checkpoint_is_reported(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match=r"state\.json is missing or broken"):
        Checkpoint(folder.checkpoint(3))


def test_newer_version_is_reported(folder: RunFolder) -> None:
    path = write(folder, 50)
    state = json.loads((path / "state.json").read_text())
    (path / "state.json").write_text(json.dumps(state | {"version": 3}))
    with pytest.raises(
        ValueError, match=r"has version 3, newer than this lockstep reads \(2\): upgrade lockstep"
    ) as caught:
        Checkpoint(path)
    assert "\n" not in str(caught.value)


def test_missing_shard_is_reported_in_one_line(folder: RunFolder) -> None:
    with pytest.raises(ValueError, match=r"shard-0007\.safetensors can't be read") as caught:
        Checkpoint(write(folder, 50)).shard(7)
    assert "\n" not in str(caught.value)


def test_interrupted_checkpoint_is_ignored_and_removed(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, 10)
    calls = []

    def fail_at_the_third(descriptor: int) -> None:
        calls.append(descriptor)
        if len(calls) == 3:
            raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail_at_the_third)
        with pytest.raises(CheckpointFailed, match="No space left"):
            write(folder, 20)
    assert folder.checkpoints() == [10]
    Checkpoint(folder.checkpoint(10))
    assert [path.name for path in (folder.path / "checkpoints").iterdir()] == ["00000010"]
    write(folder, 20)
    assert folder.checkpoints() == [10, 20]


def test_rank_that_waits_for_a_slow_disk_shows_that_it_is_alive(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, fsync, alive = Heartbeat(own_cells()), os.fsync, []

    def slow(descriptor: int) -> None:
        start, deadline = line.beats, time.monotonic() + 60
        while line.beats < start + 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        alive.append(line.beats >= start + 2)
        monkeypatch.setattr(os, "fsync", fsync)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    write(folder, 10)
    assert alive == [True]


def test_hashing_a_large_file_shows_that_the_rank_is_alive(tmp_path: Path) -> None:
    (file := tmp_path / "large").write_bytes(b"x" * 2**24)
    line = Heartbeat(own_cells())
    before = line.beats
    hash_file(file)
    assert line.beats >= before + 16


def test_damaged_checkpoint_can_be_overwritten(folder: RunFolder) -> None:
    damaged = write(folder, 50) / "agent.safetensors"
    damaged.unlink()
    Checkpoint(write(folder, 50))


def test_prune_keeps_the_newest_checkpoints(folder: RunFolder) -> None:
    for iteration in (5, 100, 20, 3):
        write(folder, iteration)
    remove_old_checkpoints(folder, keep=2)
    assert folder.checkpoints() == [20, 100]
    remove_old_checkpoints(folder, keep=9)
    assert folder.checkpoints() == [20, 100]


def test_prune_keeps_the_checkpoint_with_the_best_return(folder: RunFolder) -> None:
    """It stays whatever process prunes next; of several, the last one. A damaged one is not known to be the best."""
    for iteration, mean, kept in (
        *((1, None, [1]), (2, 5.0, [2]), (3, 4.0, [2, 3]), (4, 4.5, [2, 4]), (5, 5.0, [5]), (6, 1.0, [5, 6])),
        *((7, 6.0, [7]), (8, None, [7, 8])),
    ):
        write(folder, iteration, mean)
        remove_old_checkpoints(folder, keep=1)
        assert folder.checkpoints() == kept
    (folder.checkpoint(7) / "state.json").write_text("{}")
    remove_old_checkpoints(folder, keep=1)
    assert folder.checkpoints() == [8]


def test_forget_after_removes_later_checkpoints(folder: RunFolder) -> None:
    for iteration in (1, 2, 3):
        write(folder, iteration)
    remove_checkpoints_after(folder, 2)
    assert folder.checkpoints() == [1, 2]


@pytest.mark.parametrize(("name", "value"), [("env_steps", 4097), ("iteration", 51), ("files", {}), ("version", 1)])
def test_changed_state_file_is_reported(folder: RunFolder, name: str, value: object) -> None:
    state = write(folder, 50) / "state.json"
    state.write_text(json.dumps(json.loads(state.read_text()) | {name: value}))
    with pytest.raises(CheckpointDamaged, match=r"state\.json was changed; no other checkpoint is intact$"):
        Checkpoint(state.parent)


def test_checkpoint_of_another_iteration_is_reported(folder: RunFolder) -> None:
    moved = write(folder, 50).rename(folder.checkpoint(60))
    with pytest.raises(CheckpointDamaged, match=r"state\.json is that of iteration 50"):
        Checkpoint(moved)


def test_checkpoint_of_version_1_is_read(folder: RunFolder) -> None:
    state = write(folder, 50) / "state.json"
    content = json.loads(state.read_text()) | {"version": 1}
    del content["sha256"]
    state.write_text(json.dumps(content))
    assert same_tensors(Checkpoint(state.parent).tensors("agent"), REST["agent"])


def test_newest_intact_checkpoint_is_named(folder: RunFolder) -> None:
    for iteration in (10, 20, 30, 40):
        flip(write(folder, iteration) / "agent.safetensors") if iteration > 20 else write(folder, iteration)
    with pytest.raises(CheckpointDamaged, match=r"use the newest intact checkpoint with --iteration 20$"):
        Checkpoint(folder.checkpoint(40))


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("name", ["agent.safetensors", "state.json"])
def test_only_regular_files_are_read(folder: RunFolder, name: str, make: Callable[[Path], None]) -> None:
    path = write(folder, 50)
    (path / name).unlink()
    make(path / name)
    with pytest.raises(CheckpointDamaged, match=rf"{name} is missing"):
        Checkpoint(path)


def test_links_are_not_followed_when_a_checkpoint_is_written(folder: RunFolder, tmp_path: Path) -> None:
    (mine := tmp_path / "mine").mkdir()
    (mine / "agent.safetensors").write_text("mine")
    (folder.path / "checkpoints").mkdir()
    (folder.path / "checkpoints" / ".00000050.partial").symlink_to(mine)
    folder.checkpoint(50).symlink_to(mine)
    Checkpoint(write(folder, 50))
    assert (mine / "agent.safetensors").read_text() == "mine"
    (folder.path / "checkpoints").rename(tmp_path / "elsewhere")
    (folder.path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(CheckpointFailed, match="Not a directory"):
        write(folder, 60)


def test_removed_folder_is_reported_and_not_made_again(folder: RunFolder) -> None:
    folder.hold()
    write(folder, 10)
    moved = folder.path.rename(folder.path.with_name("moved"))
    with pytest.raises(FolderLost, match="was removed, renamed or replaced"):
        write(folder, 20)
    assert not folder.path.exists()
    RunFolder.create(folder.path, {}, {})
    with pytest.raises(FolderLost):
        write(folder, 20)
    assert RunFolder(moved).checkpoints() == [10]
    folder.release()


def test_files_that_rank_0_does_not_see_are_part_of_the_checkpoint(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network file system hides the file of rank 1 from rank 0 until the checkpoint is complete."""
    list_folder, sync = Path.iterdir, checkpoint_writer.sync_file

    def sync_visible(path: Path) -> None:
        if path.name == "shard-0001.safetensors":
            raise FileNotFoundError(path)
        sync(path)

    monkeypatch.setattr(checkpoint_writer, "sync_file", sync_visible)
    monkeypatch.setattr(
        Path, "iterdir", lambda path: (file for file in list_folder(path) if file.name != "shard-0001.safetensors")
    )

    def work(group: Group, shards: Sequence[int]) -> None:
        states = {f"shard-{index:04d}": SHARDS[index] for index in shards} | (REST if group.rank == 0 else {})
        writer = CheckpointWriter(folder, group)
        writer.write(7, states, {"env_steps": 1})
        writer.wait()

    on_ranks([[0], [1]], work)
    checkpoint = Checkpoint(folder.checkpoint(7))
    assert all(same_tensors(checkpoint.shard(index), state) for index, state in SHARDS.items())
    (folder.checkpoint(7) / "shard-0001.safetensors").unlink()
    with pytest.raises(CheckpointDamaged, match=r"shard-0001\.safetensors is missing"):
        Checkpoint(folder.checkpoint(7))

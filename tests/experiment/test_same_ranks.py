"""Checks that all ranks start with the same spaces and the same fingerprint."""

import dataclasses
import re
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from tests.threaded import on_ranks

from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.envs.spaces import Spaces
from lockstep.experiment import same_ranks
from lockstep.experiment.same_ranks import (
    RanksDiffer,
    check_same_folder,
    check_same_kernels,
    check_same_spaces,
    check_same_start,
    compare_fingerprints,
)
from lockstep.group.group import Group
from lockstep.processes.host_name import host_name
from lockstep.run.folder import RunFolder

BOUND = np.ones(2, np.float32)
SPACES = Spaces(5, (3, 4), -BOUND, BOUND)


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        ({"observation_size": 6}, "6 instead of 5 numbers per observation"),
        ({"images": ((1, 2, 3),)}, "6 instead of 0 bytes of images per observation"),
        ({"choices": (3,)}, "1 instead of 2 choices per action"),
        ({"choices": (4, 3)}, "other bounds, options or shapes"),
        ({"action_high": 2 * BOUND}, "other bounds, options or shapes"),
        ({"mask_size": 1}, "other bounds, options or shapes"),
    ],
)
def test_all_ranks_raise_the_same_error(other: dict[str, object], difference: str) -> None:
    def check(group: Group, _: object) -> str:
        spaces = dataclasses.replace(SPACES, **other) if group.rank == 1 else SPACES
        with pytest.raises(RanksDiffer) as error:
            check_same_spaces(group, spaces, "X-v0")
        return str(error.value)

    messages = on_ranks([[0], [1], [2]], check)
    assert len(set(messages)) == 1
    assert messages[0].startswith(f"env.id is 'X-v0': rank 1 has other spaces than rank 0 ({difference}); ")


def test_equal_spaces_pass() -> None:
    assert on_ranks([[0], [1]], lambda group, _: check_same_spaces(group, SPACES, "X-v0")) == [None, None]


def compare(*fingerprints: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Compare fingerprints, one per rank, and return the messages of all ranks; an empty one if a rank raised nothing."""

    def check(group: Group, _: object) -> str:
        try:
            compare_fingerprints(group, fingerprints[group.rank])
        except RanksDiffer as error:
            return str(error)
        return ""

    return on_ranks([[rank] for rank in range(len(fingerprints))], check)


HOST = host_name()


@pytest.mark.parametrize(
    ("kind", "name", "value", "expected", "line"),
    [
        (
            "version",
            "torch",
            "2.12.0",
            "2.13.0",
            f"rank 2 on host {HOST} has torch 2.12.0, but rank 0 on host {HOST} has 2.13.0; install the same versions on all hosts",
        ),
        (
            "config",
            "run.seed",
            "2",
            "1",
            f"run.seed is 2 on rank 2 on host {HOST}, but 1 on rank 0 on host {HOST}; start all ranks with the same config",
        ),
        (
            "source",
            "my_envs: my_envs.py",
            "a",
            "b",
            f"rank 2 on host {HOST} has another my_envs.py of the module my_envs than rank 0 on host {HOST}; all hosts need the same files",
        ),
        (
            "bits",
            "NumPy's functions",
            "a",
            "b",
            f"rank 2 on host {HOST} computes different bits in NumPy's functions than rank 0 on host {HOST}: the processors and environment "
            "variables are the same, so the libraries were built or compiled differently",
        ),
    ],
)
def test_difference_is_named_on_all_ranks(kind: str, name: str, value: str, expected: str, line: str) -> None:
    same = {"version": {"Python": "3.12"}, "bits": {"PyTorch": "x" * 999}}
    first, other = ({**same, kind: {**same.get(kind, {}), name: content}} for content in (expected, value))
    assert compare(first, first, other) == [line] * 3


def test_other_processor_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    processors = iter(["old", "new"])
    monkeypatch.setattr(same_ranks, "describe_dispatch", lambda: {"the processor": next(processors)})
    line, _ = compare({"bits": {"PyTorch": "a"}}, {"bits": {"PyTorch": "b"}})
    assert re.search(r": the processor is (old on rank 1, new on rank 0|new on rank 1, old on rank 0)$", line), line


def test_value_that_only_some_ranks_have_is_not_a_difference() -> None:
    """Rank 0 may have imported a module that others do not need, and only trainers have kernels."""
    assert compare({"bits": {}}, {"bits": {"kernels": "a"}}, {"bits": {"kernels": "a"}}) == [""] * 3
    line = compare({"bits": {}}, {"bits": {"kernels": "a"}}, {"bits": {"kernels": "b"}})[0]
    assert line.startswith(f"rank 2 on host {HOST} computes different bits in kernels than rank 1")


def test_ranks_of_one_config_on_one_host_start() -> None:
    assert on_ranks([[0], [1]], lambda group, _: check_same_start(group, Config())) == [None, None]


def test_ranks_with_other_configs_do_not_start() -> None:
    def start(group: Group, _: object) -> None:
        with pytest.raises(RanksDiffer, match=r"^run.seed is 1 on rank 1 on host .*, but 0 on rank 0"):
            check_same_start(group, decode({"run": {"seed": group.rank}}, Config()))

    on_ranks([[0], [1]], start)


def test_kernels_of_trainers_are_compared() -> None:
    def check(group: Group, _: object) -> None:
        check_same_kernels(group, "" if group.rank == 2 else "same")
        with pytest.raises(RanksDiffer, match=r"rank 1 on host .* computes different bits in its kernels than rank 0"):
            check_same_kernels(group, ("one", "other", "")[group.rank])

    on_ranks([[0], [1], [2]], check)


@pytest.mark.parametrize("copied", [False, True], ids=["without the folder", "with a copy"])
def test_host_with_another_folder_is_named_on_all_ranks(tmp_path: Path, copied: bool) -> None:
    folders = tmp_path / "run", tmp_path / "elsewhere"
    for folder in folders[: 1 + copied]:
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    def check(group: Group, _: object) -> str:
        with pytest.raises(RanksDiffer) as error:
            check_same_folder(group, RunFolder(folders[group.rank % 2]), timeout=0.4)
        return str(error.value)

    for message in on_ranks([[0], [1], [2]], check):
        assert re.search(
            f" on {re.escape(host_name())}, the host of rank 1, is not the folder of rank 0: it must be on a file system",
            message,
        )
    assert [path.name for path in folders[0].iterdir()] == ["config.json"]


def test_folder_that_appears_late_is_found(tmp_path: Path) -> None:
    run, late = tmp_path / "run", tmp_path / "late"
    run.mkdir()
    (run / ".shared-1").touch()  # of a start that was killed

    def check(group: Group, _: object) -> None:
        if group.rank == 1:
            threading.Timer(0.3, late.symlink_to, [run]).start()
        check_same_folder(group, RunFolder((run, late)[group.rank]), timeout=20)

    on_ranks([[0], [1]], check)
    assert [*run.iterdir()] == []

"""Groups of real processes. What each of them does is in member.py."""

import re
import signal
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.group.members import HOST, Ranks, start


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "size"),
    [("shared", 2), ("shared", 3), ("shared", 4), ("network", 2), ("network", 3), ("moved", 2), ("hosts", 3)],
)
def test_every_kind_of_group_gives_what_one_rank_gets(kind: str, size: int, started: Ranks, tmp_path: Path) -> None:
    start(started, kind, "work", size, tmp_path)
    for rank in started:
        printed, errors = rank.communicate()
        assert rank.returncode == 0, printed + errors


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["shared", "network", "nccl"])
def test_tensors_on_devices_come_back_on_them(
    kind: str, started: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if kind == "nccl" and (torch.cuda.device_count() < 2 or not dist.is_nccl_available()):
        pytest.skip("NCCL needs a device for every rank")
    monkeypatch.setenv("LOCKSTEP_TEST_DEVICE", "cuda")
    start(started, kind, "devices", 2, tmp_path)
    for rank in started:
        printed, errors = rank.communicate()
        assert rank.returncode == 0, printed + errors


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["reduce", "gather", "barrier", "part", "receive"])
@pytest.mark.parametrize("kind", ["shared", "network", "hosts"])
def test_a_killed_rank_is_named_to_all_the_others(kind: str, verb: str, started: Ranks, tmp_path: Path) -> None:
    start(started, kind, verb, 3, tmp_path, cold=verb == "reduce")
    *others, killed = started
    for (
        rank
    ) in others:  # the killed one is not waited for, unless it was forked: as a zombie it must count as ended too
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        process = rf"\(process {killed.pid} on host {HOST}\)" if kind == "shared" else f"on host {HOST}"
        assert re.fullmatch(rf"rank 2 {process} is lost in phase 'lost': its (process|connection) has ended\n", printed)
    assert killed.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.serial
@pytest.mark.parametrize("kind", ["shared", "network"])
def test_a_rank_that_hangs_is_named_to_all_the_others(kind: str, started: Ranks, tmp_path: Path) -> None:
    start(started, kind, "late", 3, tmp_path)
    for rank in started[:2]:
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        assert printed.startswith("rank 2 ")
        assert printed.endswith(" is lost in phase 'lost': it did not arrive within 3 s (see runtime.timeout)\n")


@pytest.mark.slow
@pytest.mark.serial
def test_a_rank_that_does_not_come_to_the_meeting_is_named(started: Ranks, tmp_path: Path) -> None:
    start(started, "network", "absent", 3, tmp_path, come=2)
    for rank in started:
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        assert printed.startswith("rank 2 is lost in phase 'start': ")
        assert printed.count("\n") == 1

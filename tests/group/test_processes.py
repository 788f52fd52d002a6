"""Tests of groups of real processes. Each process runs member.py."""

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
    [
        *(("shared", 3), ("shared", 4), ("network", 3), ("upgraded", 2), ("hosts", 3), ("chain", 5), ("chain", 4)),
        *(pytest.param(kind, 2, marks=pytest.mark.exhaustive) for kind in ("shared", "network")),
    ],
)
def test_every_kind_of_group_gives_the_results_of_one_rank(
    kind: str, size: int, started: Ranks, tmp_path: Path
) -> None:
    start(started, kind, "work", size, tmp_path)
    for rank in started:
        printed, errors = rank.communicate()
        assert rank.returncode == 0, printed + errors


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["shared", "network", "nccl"])
def test_results_are_on_the_device_of_the_input(
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
@pytest.mark.parametrize(
    ("kind", "operation"),
    [
        *(("shared", operation) for operation in ("reduce", "gather", "barrier", "subgroup", "receive")),
        *(("network", operation) for operation in ("reduce", "slices", "barrier", "subgroup")),
        *(("hosts", operation) for operation in ("gather", "receive")),
        ("chain", "reduce"),
        *(pytest.param("network", operation, marks=pytest.mark.exhaustive) for operation in ("gather", "receive")),
        *(
            pytest.param("hosts", operation, marks=pytest.mark.exhaustive)
            for operation in ("reduce", "barrier", "subgroup")
        ),
    ],
)
def test_all_other_ranks_report_the_killed_rank(kind: str, operation: str, started: Ranks, tmp_path: Path) -> None:
    start(started, kind, operation, 3, tmp_path, cold=(kind, operation) == ("shared", "reduce"))
    *others, killed = started
    for (
        rank
    ) in others:  # before waiting for the killed rank: unless it was forked it is a zombie, which must count as ended
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        process = rf"\(process {killed.pid} on host {HOST}\)" if kind == "shared" else f"on host {HOST}"
        assert re.fullmatch(
            rf"rank 2 {process} is lost in phase 'lost': its (process has ended|connection was closed)\n", printed
        )
    assert killed.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["shared", "network"])
def test_all_other_ranks_report_the_hanging_rank(kind: str, started: Ranks, tmp_path: Path) -> None:
    start(started, kind, "late", 3, tmp_path)
    for rank in started[:2]:
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        assert printed.startswith("rank 2 ")
        why = "no heartbeat for 11 s in stage start" if kind == "shared" else "no response within 8 s"
        assert printed.endswith(f" is lost in phase 'lost': {why} (see runtime.timeout)\n")


@pytest.mark.slow
def test_rank_without_the_secret_is_reported(started: Ranks, tmp_path: Path) -> None:
    start(started, "network", "secret", 3, tmp_path)
    *_, stranger = started
    for rank in started:
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        who = r"rank [01]" if rank is stranger else "rank 2"
        assert re.fullmatch(
            rf"{who} is lost in phase 'start': it does not have the secret of the run \(see LOCKSTEP_SECRET\)\n",
            printed,
        )


@pytest.mark.slow
def test_missing_rank_at_the_rendezvous_is_reported(started: Ranks, tmp_path: Path) -> None:
    start(started, "network", "absent", 3, tmp_path, count=2)
    for rank in started:
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        assert printed.startswith("rank 2 is lost in phase 'start': ")
        assert printed.count("\n") == 1

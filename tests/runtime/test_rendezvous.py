"""Where ranks meet, and how they do it through files in which a former meeting may have left something."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep.runtime.rank_info import RankInfo, find_rank_info
from lockstep.runtime.rendezvous import FileMeeting, choose_rendezvous, first_host
from lockstep.runtime.settings import RuntimeConfig

ONE_HOST = RankInfo(1, 2, 1, 2, "mpirun")
TWO_HOSTS = RankInfo(1, 4, 1, 2, "mpirun")
SLURM = {
    "SLURM_JOB_ID": "4711",
    "SLURM_STEP_ID": "2",
    "SLURM_JOB_NODELIST": "x[01-04]",
    "SLURM_STEP_NODELIST": "x[02-03]",
}
MASTER = {"MASTER_ADDR": "host", "MASTER_PORT": "1"}


def met(path: Path, size: int, timeout: float = 20) -> set[Path]:
    """The files that `size` ranks agree on when they come at once."""
    with ThreadPoolExecutor(size) as pool:
        return {*pool.map(lambda rank: FileMeeting(path, rank, size).meet(timeout), range(size))}


def test_the_users_word_counts_most(tmp_path: Path) -> None:
    for rendezvous in (f"file://{tmp_path}/meet", "tcp://somewhere:1", "env://"):
        assert choose_rendezvous(ONE_HOST, rendezvous, MASTER).meeting == rendezvous
    assert choose_rendezvous(TWO_HOSTS, None, MASTER).meeting == "env://"


def test_on_one_host_it_is_a_file_that_all_ranks_find() -> None:
    first, second = (choose_rendezvous(RankInfo(rank, 2, rank, 2, "mpirun"), None, {}).meeting for rank in range(2))
    assert first == second
    assert first.startswith(f"file://{tempfile.gettempdir()}/lockstep-meeting-{os.getuid()}-")
    others = [
        choose_rendezvous(ONE_HOST, None, {"PMIX_NAMESPACE": "7"}).meeting,
        choose_rendezvous(RankInfo(1, 3, 1, 3, "mpirun"), None, {}).meeting,
        choose_rendezvous(RankInfo(1, 2, 1, 2, "srun"), None, SLURM).meeting,
    ]
    assert len({first, *others}) == 4


def test_alone_nobody_is_met() -> None:
    assert choose_rendezvous(RankInfo(0, 1, 0, 1, "mpirun"), None, {}).meeting == ""


def test_slurm_meets_on_the_steps_first_host() -> None:
    place = RankInfo(1, 4, 1, 2, "srun")
    assert choose_rendezvous(place, None, SLURM).meeting == f"tcp://x02:{12_000 + (31 * 4711 + 2) % 20_000}"
    assert choose_rendezvous(place, None, SLURM | {"SLURM_STEP_ID": "3"}) != choose_rendezvous(place, None, SLURM)


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("node1", "node1"),
        ("node[01-04,7],x1", "node01"),
        ("x1,node[01-04]", "x1"),
        ("a[1-2]b[3,4],c", "a1b3"),
        ("gpu-[7]", "gpu-7"),
        ("n[09-11].domain", "n09.domain"),
    ],
)
def test_first_host(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("place", "rendezvous", "part"),
    [
        (TWO_HOSTS, None, "runtime.rendezvous is needed: nothing says where the 4 ranks meet"),
        (find_rank_info({"RANK": "0", "WORLD_SIZE": "2"}), None, "runtime.rendezvous is needed"),
        (RankInfo(0, 4, 0, 2, "srun"), None, "runtime.rendezvous is needed"),
        (ONE_HOST, "env://", "MASTER_ADDR and MASTER_PORT"),
        (ONE_HOST, "file:///nowhere/at/all", "'file:///nowhere/at/all': the file's folder does not exist"),
    ],
)
def test_nowhere_to_meet_gets_one_line(place: RankInfo, rendezvous: str | None, part: str) -> None:
    with pytest.raises(ValueError, match=r"runtime\.rendezvous") as caught:
        choose_rendezvous(place, rendezvous, {"MASTER_PORT": "1"})
    assert part in str(caught.value)


@pytest.mark.parametrize("address", ["file://relative", "file:///", "file:///x/", "tcp://host", "http://x", "env", ""])
def test_addresses_are_checked(address: str) -> None:
    with pytest.raises(ValueError, match=r"runtime\.rendezvous is") as caught:
        RuntimeConfig(rendezvous=address)
    assert "file:///PATH" in str(caught.value)


def test_a_former_meeting_does_not_confuse(tmp_path: Path) -> None:
    path = tmp_path / "meet"
    files = []
    for size in (3, 3, 2, 4):  # nothing is removed between them, as after a kill
        agreed = met(path, size)
        assert len(agreed) == 1
        files += agreed
        files[-1].write_text("what torch.distributed leaves")
    assert len(set(files)) == 4


@pytest.mark.parametrize("late", [0, 2])
def test_a_rank_that_comes_late_is_waited_for(tmp_path: Path, late: int) -> None:
    path = tmp_path / "meet"
    met(path, 3)
    with ThreadPoolExecutor(3) as pool:
        early = [pool.submit(FileMeeting(path, rank, 3).meet, 20) for rank in range(3) if rank != late]
        assert not any(meeting.done() for meeting in early)
        with pytest.raises(TimeoutError):
            early[0].result(0.3)
        last = pool.submit(FileMeeting(path, late, 3).meet, 20)
        assert len({meeting.result() for meeting in (*early, last)}) == 1


def test_who_does_not_come_is_named(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError) as caught:
        FileMeeting(tmp_path / "meet", 0, 3).meet(0.1)
    assert caught.value.args == ("ranks 1, 2", f"nobody came to file://{tmp_path}/meet in time")
    with pytest.raises(TimeoutError) as caught:
        FileMeeting(tmp_path / "meet", 2, 3).meet(0.1)
    assert caught.value.args[0] == "rank 0"


def test_only_its_own_files_are_cleared(tmp_path: Path) -> None:
    path = tmp_path / "meet[1]"
    (file,) = met(path, 2)
    file.touch()
    others = {path, *(path.with_name(f"{path.name}.{ending}") for ending in ("tar", "rank-x", "yaml"))}
    for other in others:
        other.touch()
    FileMeeting(path, 0, 2).clear()
    assert {*tmp_path.iterdir()} == others


def test_a_private_folder_is_for_nobody_else(tmp_path: Path) -> None:
    path = tmp_path / "lockstep-meeting-0-x" / "meeting"
    met(path, 2)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    FileMeeting(path, 0, 2).clear()
    assert not path.parent.exists()
    path.parent.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="somebody else"):
        FileMeeting(path, 0, 2).meet(1)

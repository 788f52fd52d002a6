"""Tests of the choice of the address, and of the rendezvous through files, where files of an earlier run may remain."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lockstep.runtime.rank_info import RankInfo, find_rank_info
from lockstep.runtime.rendezvous import FileRendezvous, choose_rendezvous, first_host
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


def agreed_files(path: Path, size: int, timeout: float = 20) -> set[Path]:
    """Run a rendezvous of `size` ranks that start together, and return the files on which they agree."""
    with ThreadPoolExecutor(size) as pool:
        meetings = {*pool.map(lambda rank: FileRendezvous(path, rank, size).wait(timeout), range(size))}
    assert len({meeting.secret for meeting in meetings}) == 1
    return {meeting.file for meeting in meetings}


def test_configured_address_takes_precedence(tmp_path: Path) -> None:
    for address in (f"file://{tmp_path}/meet", "tcp://somewhere:1", "env://"):
        assert choose_rendezvous(ONE_HOST, address, MASTER).rendezvous == address
    assert choose_rendezvous(TWO_HOSTS, None, MASTER).rendezvous == "env://"


def test_ranks_of_one_host_choose_the_same_file() -> None:
    first, second = (choose_rendezvous(RankInfo(rank, 2, rank, 2, "mpirun"), None, {}).rendezvous for rank in range(2))
    assert first == second
    assert first.startswith(f"file://{tempfile.gettempdir()}/lockstep-rendezvous-{os.getuid()}-")
    others = [
        choose_rendezvous(ONE_HOST, None, {"PMIX_NAMESPACE": "7"}).rendezvous,
        choose_rendezvous(RankInfo(1, 3, 1, 3, "mpirun"), None, {}).rendezvous,
        choose_rendezvous(RankInfo(1, 2, 1, 2, "srun"), None, SLURM).rendezvous,
    ]
    assert len({first, *others}) == 4


def test_single_rank_has_no_address() -> None:
    assert choose_rendezvous(RankInfo(0, 1, 0, 1, "mpirun"), None, {}).rendezvous == ""


def test_slurm_uses_the_first_host_of_the_step() -> None:
    rank_info = RankInfo(1, 4, 1, 2, "srun")
    assert choose_rendezvous(rank_info, None, SLURM).rendezvous == f"tcp://x02:{12_000 + (31 * 4711 + 2) % 20_000}"
    assert choose_rendezvous(rank_info, None, SLURM | {"SLURM_STEP_ID": "3"}) != choose_rendezvous(
        rank_info, None, SLURM
    )


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
def test_first_host_of_a_slurm_node_list(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


@pytest.mark.parametrize(
    ("rank_info", "address", "part"),
    [
        (TWO_HOSTS, None, "runtime.rendezvous is None: the launcher gives no address for the 4 ranks"),
        (find_rank_info({"RANK": "0", "WORLD_SIZE": "2"}), None, "runtime.rendezvous is None"),
        (RankInfo(0, 4, 0, 2, "srun"), None, "runtime.rendezvous is None"),
        (ONE_HOST, "env://", "MASTER_ADDR and MASTER_PORT"),
        (ONE_HOST, "file:///nowhere/at/all", "'file:///nowhere/at/all': the file's folder does not exist"),
    ],
)
def test_missing_address_is_reported_in_one_line(rank_info: RankInfo, address: str | None, part: str) -> None:
    with pytest.raises(ValueError, match=r"runtime\.rendezvous") as caught:
        choose_rendezvous(rank_info, address, {"MASTER_PORT": "1"})
    assert part in str(caught.value)


@pytest.mark.parametrize("address", ["file://relative", "file:///", "file:///x/", "tcp://host", "http://x", "env", ""])
def test_invalid_addresses_are_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"runtime\.rendezvous is") as caught:
        RuntimeConfig(rendezvous=address)
    assert "file:///PATH" in str(caught.value)


def test_files_of_an_earlier_run_are_ignored(tmp_path: Path) -> None:
    path = tmp_path / "meet"
    files = []
    for size in (3, 3, 2, 4):  # no files are removed in between, as after a kill
        agreed = agreed_files(path, size)
        assert len(agreed) == 1
        files += agreed
        files[-1].write_text("content written by torch.distributed")
    assert len(set(files)) == 4


@pytest.mark.parametrize("late", [0, 2])
def test_ranks_wait_for_a_late_rank(tmp_path: Path, late: int) -> None:
    path = tmp_path / "meet"
    agreed_files(path, 3)
    with ThreadPoolExecutor(3) as pool:
        early = [pool.submit(FileRendezvous(path, rank, 3).wait, 20) for rank in range(3) if rank != late]
        assert not any(future.done() for future in early)
        with pytest.raises(TimeoutError):
            early[0].result(0.3)
        last = pool.submit(FileRendezvous(path, late, 3).wait, 20)
        assert len({future.result() for future in (*early, last)}) == 1


def test_missing_ranks_are_reported(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError) as caught:
        FileRendezvous(tmp_path / "meet", 0, 3).wait(0.1)
    assert caught.value.args == ("ranks 1, 2", f"timed out waiting at file://{tmp_path}/meet")
    with pytest.raises(TimeoutError) as caught:
        FileRendezvous(tmp_path / "meet", 2, 3).wait(0.1)
    assert caught.value.args[0] == "rank 0"


def test_only_the_user_can_read_the_secret(tmp_path: Path) -> None:
    path = tmp_path / "meet"
    with ThreadPoolExecutor(2) as pool:
        meetings = [*pool.map(lambda rank: FileRendezvous(path, rank, 2).wait(20), range(2))]
    secret = meetings[0].secret.decode()
    assert not any(secret in file.name for file in (*tmp_path.iterdir(), meetings[0].file))
    with_secret = [file for file in tmp_path.iterdir() if secret in file.read_text()]
    assert len(with_secret) == 2
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in with_secret)


def test_secret_is_that_of_the_environment() -> None:
    secret = "0123456789abcdef"
    rank_info = choose_rendezvous(TWO_HOSTS, None, MASTER | {"LOCKSTEP_SECRET": secret})
    assert rank_info.secret == secret.encode()
    assert secret not in repr(rank_info)
    assert choose_rendezvous(TWO_HOSTS, None, MASTER).secret is None
    with pytest.raises(ValueError, match="LOCKSTEP_SECRET has 15 characters: it must have at least 16") as caught:
        choose_rendezvous(TWO_HOSTS, None, MASTER | {"LOCKSTEP_SECRET": secret[:15]})
    assert secret[:15] not in str(caught.value)


def test_only_files_of_the_rendezvous_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "meet[1]"
    (file,) = agreed_files(path, 2)
    file.touch()
    others = {path, *(path.with_name(f"{path.name}.{ending}") for ending in ("tar", "rank-x", "yaml"))}
    for other in others:
        other.touch()
    FileRendezvous(path, 0, 2).remove()
    assert {*tmp_path.iterdir()} == others


def test_private_folder_must_not_be_accessible_to_others(tmp_path: Path) -> None:
    path = tmp_path / "lockstep-rendezvous-0-x" / "rendezvous"
    agreed_files(path, 2)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    FileRendezvous(path, 0, 2).remove()
    assert not path.parent.exists()
    path.parent.mkdir(mode=0o755)
    with pytest.raises(PermissionError, match="only this user can access"):
        FileRendezvous(path, 0, 2).wait(1)

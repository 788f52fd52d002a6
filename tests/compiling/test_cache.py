"""Tests of the cache of compiled libraries: checks before a library is loaded, and how a compilation is stopped."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from tests.compiling.doubled import Doubled
from tests.live_runs import wait_for

from lockstep.compiling import cache as kernel_cache
from lockstep.compiling import kernels
from lockstep.compiling.build import CompilerFailed, build_missing
from lockstep.compiling.kernels import ahead_of_time

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def fixture_no_products() -> Iterator[None]:
    """Keep the library of products out of the cache, on every processor."""
    with pytest.MonkeyPatch.context() as context:
        context.setattr(kernels, "uses_products", lambda threads: False)
        yield


@pytest.fixture(scope="module", name="compiled")
def fixture_compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a cache with one library."""
    cache = tmp_path_factory.mktemp("compiled") / "cache"
    with pytest.MonkeyPatch.context() as context:
        context.setenv("LOCKSTEP_CACHE", str(cache))
        assert double() == [2.0, 2.0, 2.0]
    assert cache.stat().st_mode & 0o777 == 0o700
    return cache


@pytest.fixture(name="stored")
def fixture_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, compiled: Path) -> Path:
    """Copy the cache for one test and return its library."""
    shutil.copytree(compiled, tmp_path / "cache")
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    (library,) = (tmp_path / "cache").glob("*.so")
    return library


def double() -> list[float]:
    """Compile or load a formula that doubles, and apply it to ones."""
    return ahead_of_time(Doubled("stored"), (torch.ones(3),))(torch.ones(3))[0].tolist()


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty", "no record", "broken record", "other record"])
def test_damaged_library_is_detected(stored: Path, damage: str) -> None:
    content, record = stored.read_bytes(), stored.with_suffix(".json")
    assert kernel_cache.find_defect(stored) is None
    if "record" not in damage:
        stored.write_bytes({"truncated": content[:5000], "empty": b"", "changed": content[:-9] + b"123456789"}[damage])
    elif damage == "no record":
        record.unlink()
    else:
        record.write_text("[" * 9 if damage == "broken record" else "7")
    reason = (
        "has no readable record of its hash"
        if damage in ("no record", "broken record")
        else "does not match its recorded hash"
    )
    assert kernel_cache.find_defect(stored) == reason


def test_damaged_library_is_compiled_again(stored: Path, capfd: pytest.CaptureFixture[str]) -> None:
    stored.write_bytes(stored.read_bytes()[:5000])
    assert double() == [2.0, 2.0, 2.0]
    (first,) = capfd.readouterr().err.splitlines()
    assert first == f"{stored} does not match its recorded hash; compiling it again"
    assert double() == [2.0, 2.0, 2.0]
    assert capfd.readouterr().err == ""


def test_missing_interface_for_loading_libraries_is_reported(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._aoti, "AOTIModelContainerRunnerCpu")
    with pytest.raises(
        CompilerFailed, match=r"no torch\._C\._aoti\.AOTIModelContainerRunnerCpu.*'torch>=2\.13,<2\.14'"
    ):
        double()
    assert stored.exists()


def test_cache_that_other_users_can_write_is_refused(stored: Path) -> None:
    stored.parent.chmod(0o777)
    with pytest.raises(
        CompilerFailed, match=r"is writable by other users \(run `chmod go-w .*`\); set LOCKSTEP_CACHE"
    ) as caught:
        double()
    assert "\n" not in str(caught.value)
    stored.parent.chmod(0o500)  # libraries of a read-only cache are used
    assert double() == [2.0, 2.0, 2.0]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a folder")
def test_cache_of_another_user_is_refused(stored: Path) -> None:
    os.chown(stored.parent, 65534, 65534)
    with pytest.raises(CompilerFailed, match="belongs to another user; set LOCKSTEP_CACHE to another folder"):
        double()


def test_symbolic_link_as_lock_is_not_followed(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("content")
    lock = stored.parent / f"lock-{stored.name[0]}"
    lock.unlink()
    lock.symlink_to(tmp_path / "target")
    stored.unlink()
    with pytest.raises(CompilerFailed, match="can't be written"):
        double()
    assert (tmp_path / "target").read_text() == "content"


class Stop(Exception):
    """Exception that `check` raises."""


def test_check_can_stop_the_compilation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))

    def check() -> None:
        if list(tmp_path.glob("cache/building-*/*")):  # while it compiles
            raise Stop

    with pytest.raises(Stop):
        ahead_of_time(Doubled("stopped"), (torch.ones(3),), check)
    assert {path.name[:5] for path in (tmp_path / "cache").iterdir()} - {"probe"} == {"lock-"}
    assert subprocess.run(["pgrep", "-P", str(os.getpid()), "-f", "cc1plus"], capture_output=True).stdout == b""


def test_signal_to_every_process_ends_the_compilation_and_its_children(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Schedulers signal all processes of a job: the compiling process ignores the signal, and its parent ends it."""
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    pids = tmp_path / "pids"

    def compiled(*arguments: object, **options: object) -> Path:
        os.kill(os.getpid(), signal.SIGTERM)
        with subprocess.Popen(["sleep", "300"]) as child:
            pids.with_suffix(".new").write_text(f"{os.getpid()} {child.pid}")
            pids.with_suffix(".new").rename(pids)
        return tmp_path

    def check() -> None:
        if pids.exists():
            raise Stop

    monkeypatch.setattr(kernels, "_compiled", compiled)
    with pytest.raises(Stop):
        ahead_of_time(Doubled("signalled"), (torch.ones(3),), check)
    for pid in pids.read_text().split():
        wait_for(lambda pid=pid: not running(pid), "the end of the compiler")


def running(pid: str) -> bool:
    """Return True if the process exists and is not a zombie."""
    status = Path("/proc", pid, "stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_with_a_gpu_the_compilation_does_not_fork(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def compiled(formula: object, examples: object, folder: Path, *others: object, **options: object) -> Path:
        (folder / "library").write_text(str(os.getpid()))
        return folder / "library"

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(kernels, "_compiled", compiled)
    threads = torch.get_num_threads()
    makes = {tmp_path / name: partial(kernels._compile, Doubled("here"), ()) for name in ("a.so", "b.so")}
    build_missing(makes, kernel_cache.find_defect, lambda: None)
    assert (tmp_path / "a.so").read_text() == str(os.getpid())
    assert torch.get_num_threads() == threads


def test_library_that_cannot_be_opened_is_compiled_again(stored: Path, capfd: pytest.CaptureFixture[str]) -> None:
    built = stored.with_name("built.so")
    built.write_bytes(b"not a library")
    kernel_cache.store(built, stored)
    assert double() == [2.0, 2.0, 2.0]
    (first,) = capfd.readouterr().err.splitlines()
    assert first.startswith(f"{stored} can't be opened (")
    assert first.endswith("; compiling it again")


def test_check_can_stop_waiting_for_another_process(stored: Path) -> None:
    stored.unlink()

    def check() -> None:
        raise Stop

    lock = kernel_cache.try_lock(stored)
    assert lock is not None
    with pytest.raises(Stop):
        ahead_of_time(Doubled("stored"), (torch.ones(3),), check)
    kernel_cache.release(lock)


def test_key_depends_only_on_the_code_of_formulas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    package = tmp_path / "lockstep"
    shutil.copytree(Path(kernels.__file__).parents[1], package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(kernels, "__file__", str(package / "compiling" / "kernels.py"))
    before = kernels._source_digest.__wrapped__()
    (package / "cli" / "train.py").write_text("changed")
    assert kernels._source_digest.__wrapped__() == before
    (package / "ppo" / "losses.py").write_text("changed")
    assert kernels._source_digest.__wrapped__() != before


def test_cache_keeps_the_most_recently_used_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kernel_cache, "_MAX_LIBRARIES", 2)
    for age, name in enumerate("cab"):
        (tmp_path / f"{name}.so").touch()
        (tmp_path / f"{name}.json").touch()
        os.utime(tmp_path / f"{name}.so", (age, age))
    kernel_cache.clean_up(tmp_path / "d.so")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.so", "b.json", "b.so"]

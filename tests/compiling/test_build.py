"""Tests of building several libraries at the same time. The libraries are text files."""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.compiling import build
from lockstep.compiling.build import CompilerFailed, Make, build_missing
from lockstep.compiling.cache import find_defect, release, try_lock

NAMES = ("a1", "b1", "c1")


@pytest.fixture(autouse=True)
def fixture_three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Build on three cores."""
    monkeypatch.setattr(build, "usable_cores", lambda: 3)


def never() -> None:
    """Do not stop."""


def write(folder: Path) -> Path:
    """Make a library."""
    (folder / "library").write_text("content")
    return folder / "library"


def until(condition: Callable[[], object], then: Make = write) -> Make:
    """Return a function that waits for a condition, half a minute at most, and then makes a library."""

    def make(folder: Path) -> Path:
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.01)
        return then(folder)

    return make


def left(folder: Path) -> set[str]:
    """Return the files that are not libraries, their records or locks."""
    return {path.name for path in folder.iterdir() if path.suffix not in (".so", ".json") and path.name[:5] != "lock-"}


def test_libraries_are_built_at_the_same_time(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()

    def meeting(name: str) -> Make:
        """Return a function that waits until all three have been called."""
        return until(lambda: ((marks / name).touch(), len([*marks.iterdir()]) == len(NAMES))[1])

    libraries = [tmp_path / f"{name}.so" for name in NAMES]
    announced: list[int] = []
    makes = {library: meeting(library.stem) for library in libraries}
    build_missing(makes, find_defect, never, lambda: announced.append(1))
    assert [find_defect(library) for library in libraries] == [None] * len(NAMES)
    build_missing(makes, find_defect, never, lambda: announced.append(1))
    assert announced == [1]
    assert left(tmp_path) == {"marks"}


@pytest.mark.parametrize(("cores", "names"), [(1, NAMES), (3, ("a1", "a2", "a3"))], ids=["one core", "one lock"])
def test_libraries_are_built_one_after_the_other(
    cores: int, names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "usable_cores", lambda: cores)
    running = tmp_path / "running"

    def alone(folder: Path) -> Path:
        running.mkdir()  # fails if another one runs
        time.sleep(0.05)
        running.rmdir()
        return write(folder)

    libraries = [tmp_path / f"{name}.so" for name in names]
    build_missing(dict.fromkeys(libraries, alone), find_defect, never)
    assert [find_defect(library) for library in libraries] == [None] * len(names)


def test_a_failure_ends_the_other_builds(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def slow(folder: Path) -> Path:
        pids.write_text(str(os.getpid()))
        time.sleep(300)
        return folder

    def fail(folder: Path) -> Path:
        raise RuntimeError("the message of the compiler")

    makes = {tmp_path / "a1.so": slow, tmp_path / "b1.so": until(pids.exists, fail)}
    with pytest.raises(CompilerFailed, match=r"the compilation failed, see .*failure\.log"):
        build_missing(makes, find_defect, never)
    assert (tmp_path / "failure.log").read_text() == "the message of the compiler"
    assert not Path("/proc", pids.read_text()).exists()
    assert left(tmp_path) == {"pids", "failure.log"}
    for library in makes:
        lock = try_lock(library)
        assert lock is not None
        release(lock)


def test_the_lock_of_a_complete_library_is_free_while_others_are_built(tmp_path: Path) -> None:
    """The process that builds the second library has inherited the lock of the first."""
    first, second, seen = tmp_path / "a1.so", tmp_path / "b1.so", tmp_path / "seen"

    def look() -> None:
        if find_defect(first) is None and not seen.exists():
            lock = try_lock(first)
            if lock is not None:
                release(lock)
                seen.touch()

    begun = tmp_path / "begun"
    both = until(begun.exists)
    build_missing({first: both, second: until(lambda: (begun.touch(), seen.exists())[1])}, find_defect, look)
    assert find_defect(second) is None


def test_a_library_that_another_process_has_built_meanwhile_is_not_built_again(tmp_path: Path) -> None:
    library = tmp_path / "a1.so"
    lock = try_lock(library)
    assert lock is not None
    problems = iter(["", None])

    def fail(folder: Path) -> Path:
        raise RuntimeError("it is built again")

    timer = threading.Timer(0.2, release, [lock])
    timer.start()
    build_missing({library: fail}, lambda path: next(problems), never)
    timer.join()
    assert next(problems, "none left") == "none left"

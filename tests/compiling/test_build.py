"""Tests of building several libraries at the same time. The libraries are text files that shell scripts write."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from tests.live_runs import wait_for

from lockstep.compiling.build import CompilerFailed, build_missing
from lockstep.compiling.cache import find_defect, release, try_lock


class Stop(Exception):
    """Exception that `check` raises."""


def never() -> None:
    """Do not stop."""


def script(text: str) -> list[str]:
    """Return a command that runs a shell script, in which $1 is the library to write."""
    return ["sh", "-ec", text, "sh"]


WRITE = "echo content > $1"


def until(condition: str, then: str = WRITE) -> list[str]:
    """Return the command of a script that waits for a condition, half a minute at most."""
    return script(f"n=0; until {condition}; do n=$((n + 1)); [ $n -lt 3000 ]; sleep 0.01; done; {then}")


def left(folder: Path) -> set[str]:
    """Return the files that are not libraries, their records or locks."""
    return {path.name for path in folder.iterdir() if path.suffix not in (".so", ".json") and path.name[:5] != "lock-"}


def is_running(pid: str) -> bool:
    """Return True if the process exists and is not a zombie."""
    status = Path("/proc", pid, "stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_libraries_are_built_at_the_same_time(tmp_path: Path) -> None:
    libraries = [tmp_path / f"{name}.so" for name in ("a1", "b1", "c1")]
    met = " && ".join(f"[ -e {tmp_path}/{library.stem} ]" for library in libraries)
    commands = {library: until(f"touch {tmp_path}/{library.stem} && {met}") for library in libraries}
    announced: list[int] = []
    for _ in range(2):
        build_missing(commands, never, lambda: announced.append(1))
        assert [find_defect(library) for library in libraries] == [None] * 3
    assert announced == [1], "it must be announced once"
    assert left(tmp_path) == {"a1", "b1", "c1"}


def test_libraries_with_the_same_lock_are_built_one_after_the_other(tmp_path: Path) -> None:
    libraries = [tmp_path / f"a{number}.so" for number in range(3)]
    alone = script(f"mkdir {tmp_path}/running; sleep 0.05; rmdir {tmp_path}/running; {WRITE}")
    build_missing(dict.fromkeys(libraries, alone), never)
    assert [find_defect(library) for library in libraries] == [None] * 3


def test_lock_is_released_if_a_build_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def mkdtemp(**words: object) -> str:
        raise PermissionError(13, "Permission denied")

    library = tmp_path / "a1.so"
    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "mkdtemp", mkdtemp)
        with pytest.raises(PermissionError):
            build_missing({library: script(WRITE)}, never)
    build_missing({library: script(WRITE)}, never)
    assert find_defect(library) is None


def test_a_failure_ends_the_other_builds(tmp_path: Path) -> None:
    slow = script(f"echo $$ > {tmp_path}/pid; exec sleep 300")
    failing = until(f"[ -s {tmp_path}/pid ]", "echo the message of the compiler >&2; false")
    commands = {tmp_path / "a1.so": slow, tmp_path / "b1.so": failing}
    with pytest.raises(CompilerFailed, match=r"^runtime\.compile is 'on': the compilation failed, see .*failure\.log"):
        build_missing(commands, never)
    assert (tmp_path / "failure.log").read_text() == "the message of the compiler\n"
    pid = (tmp_path / "pid").read_text().strip()
    wait_for(lambda: not is_running(pid), "the end of the other compiler")
    assert left(tmp_path) == {"pid", "failure.log"}
    for library in commands:
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

    both = until(f"[ -e {tmp_path}/begun ]")
    build_missing({first: both, second: until(f"touch {tmp_path}/begun && [ -e {seen} ]")}, look)
    assert find_defect(second) is None


def test_a_library_that_another_process_has_built_meanwhile_is_not_built_again(tmp_path: Path) -> None:
    library = tmp_path / "a1.so"
    build_missing({library: script(WRITE)}, never)
    record = library.with_suffix(".json")
    complete = record.read_text()
    record.unlink()
    lock = try_lock(library)
    assert lock is not None

    def finish() -> None:
        record.write_text(complete)
        release(lock)

    timer = threading.Timer(0.2, finish)
    timer.start()
    build_missing({library: script("false")}, never)
    timer.join()


def test_check_can_stop_a_build_and_a_wait(tmp_path: Path) -> None:
    library, pid = tmp_path / "a1.so", tmp_path / "pid"

    def check() -> None:
        if pid.exists() and pid.read_text():
            raise Stop

    with pytest.raises(Stop):
        build_missing({library: script(f"echo $$ > {pid}; exec sleep 300")}, check)
    wait_for(lambda: not is_running(pid.read_text().strip()), "the end of the compiler")
    assert left(tmp_path) == {"pid"}
    lock = try_lock(library)
    assert lock is not None
    with pytest.raises(Stop):
        build_missing({library: script("false")}, check)
    release(lock)


PROGRAM = """
import sys
from pathlib import Path
from lockstep.compiling.build import build_missing

build_missing({Path(sys.argv[1]): ["sh", "-ec", sys.argv[2], "sh"]}, lambda: None)
"""


def test_processes_wait_for_each_other(tmp_path: Path) -> None:
    once = f"mkdir {tmp_path}/once; sleep 0.3; {WRITE}"  # fails if it runs twice
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "a1.so"), once]
    assert [process.wait() for process in [subprocess.Popen(command) for _ in range(2)]] == [0, 0]
    assert find_defect(tmp_path / "a1.so") is None


def test_output_of_a_killed_process_is_not_used(tmp_path: Path) -> None:
    slow = f"echo part > $1; echo $$ > {tmp_path}/pid; exec sleep 300"
    with subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path / "a1.so"), slow]) as process:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the compiler")
        os.kill(process.pid, signal.SIGKILL)
    assert not [*tmp_path.glob("*.so")]
    time.sleep(0.05)  # the child ends with its parent, and the lock with the child
    build_missing({tmp_path / "a1.so": script(WRITE)}, never)
    assert left(tmp_path) == {"pid"}, "the folder of the killed build must be removed"

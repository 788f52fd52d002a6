"""Faults of the disk that holds the run folder, for the benchmark of faults. The disk is a file system in a file, which only root can mount."""

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fault_runs import Case

__all__ = ["DISK_FAULTS", "RUN_FOLDER", "disk_cases", "repair"]

RUN_FOLDER = "run folder"
"""Place of the faults."""
_SIZE = 64 << 20


def _fill(runs: Path) -> None:
    with suppress(OSError), (runs / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 10, 1):
            with suppress(OSError):
                while file.write(bytes(size)):
                    pass


def _break(runs: Path) -> None:
    """Let the system find an error in the file system, at which it makes it read-only."""
    device = Path(_output("findmnt", "--noheadings", "--output", "SOURCE", runs).strip()).name
    Path(f"/sys/fs/ext4/{device}/trigger_fs_error").write_text("1")


def _remove(runs: Path) -> None:
    shutil.rmtree(next(path for path in runs.iterdir() if path.is_dir() and path.name != "lost+found"))


DISK_FAULTS: dict[str, Callable[[Path], None]] = {
    "full disk": _fill,
    "full disk, for a while": _fill,
    "read-only disk": _break,
    "removed folder": _remove,
}
"""What happens to the folder of all runs. A disk that is full for a while is repaired as soon as a message says so."""


def repair(runs: Path) -> None:
    """Make the disk writable again."""
    try:
        (runs / "written").touch()
    except OSError:
        _output("umount", runs)
        _mount(runs)
    (runs / "filler").unlink(missing_ok=True)


def disk_cases(folder: Path) -> Iterator[tuple[Case, str, str, str]]:
    """Yield each run with its fault, the place of the fault and the transport, while its disk is mounted."""
    for backend, transport in (("auto", "shared memory"), ("gloo", "gloo")):
        for name in DISK_FAULTS:
            place = folder / f"disk-{name.replace(' ', '-').replace(',', '')}-{backend}"
            with _disk(place / "runs"):
                words = ("--plan", "1:2", "--ranks", "3", "--runtime.backend", backend, "--env.engine", "gymnasium")
                yield Case(place, "run", *words), name, RUN_FOLDER, transport


@contextmanager
def _disk(runs: Path) -> Iterator[None]:
    runs.mkdir(parents=True)
    with _image(runs).open("wb") as image:
        image.truncate(_SIZE)
    _output("mkfs.ext4", "-q", _image(runs))
    _mount(runs)
    try:
        yield
    finally:
        _output("umount", "--lazy", runs)


def _image(runs: Path) -> Path:
    return runs.with_name("image")


def _mount(runs: Path) -> None:
    # exit code 1 of e2fsck: errors were corrected
    subprocess.run(["e2fsck", "-p", _image(runs)], check=False, capture_output=True)
    _output("mount", "-o", "loop,errors=remount-ro", _image(runs), runs)


def _output(*words: object) -> str:
    return subprocess.run([*map(str, words)], check=True, stdout=subprocess.PIPE, text=True).stdout

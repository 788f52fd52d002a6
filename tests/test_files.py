"""Files in folders that others may have made: only regular files of bounded size are read, and nothing is written through a link."""

import errno
import os
import time
import tracemalloc
from pathlib import Path

import pytest

from lockstep.files import (
    create_file,
    make_folder,
    open_to_append,
    read_file,
    read_lines,
    remove_leftovers,
    write_atomically,
)


def test_file_is_read_up_to_the_limit(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"12345")
    assert read_file(path, 5) == b"12345"
    with pytest.raises(OSError, match="it has 5 bytes, more than 4"):
        read_file(path, 4)
    with pytest.raises(OSError, match="it has more than 4 bytes"):
        read_file(Path("/proc/self/status"), 4)  # which has no size


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_anything_but_a_regular_file_is_refused(make: object, tmp_path: Path) -> None:
    assert callable(make)
    make(tmp_path / "file")
    with pytest.raises(OSError, match="it is not a regular file"):
        read_file(tmp_path / "file")


def test_link_to_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"a\nb")
    (tmp_path / "file").symlink_to("blob")  # as in the cache of the Hub client
    assert list(read_lines(tmp_path / "file")) == [b"a\n", b"b"]


def test_long_line_comes_in_pieces(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * (2**20 + 1) + b"\ny\n")
    assert [len(line) for line in read_lines(tmp_path / "file")] == [2**20, 2, 2]


def test_nothing_is_written_through_links(tmp_path: Path) -> None:
    (mine := tmp_path / "mine").write_bytes(b"mine")
    path = tmp_path / "file"
    path.symlink_to(mine)
    (tmp_path / ".file.partial").symlink_to(mine)
    for open_file in (create_file, open_to_append):
        with pytest.raises(OSError, match=r"File exists|Too many levels of symbolic links"):
            open_file(path)
    write_atomically(path, b"new")
    assert (path.is_symlink(), path.read_bytes(), mine.read_bytes()) == (False, b"new", b"mine")
    (tmp_path / "folder").symlink_to(tmp_path)
    with pytest.raises(NotADirectoryError, match="it is not a folder"):
        make_folder(tmp_path / "folder")


def test_folder_is_not_created_in_a_missing_one(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        make_folder(tmp_path / "gone" / "folder")
    make_folder(tmp_path / "folder")
    make_folder(tmp_path / "folder")


def test_failed_write_leaves_nothing_and_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(tmp_path / "file", b"content")
    assert caught.value.filename == str(tmp_path / "file")
    assert not list(tmp_path.iterdir())


def test_old_temporary_files_are_removed(tmp_path: Path) -> None:
    for name in (".a.0.partial", ".b.0.partial", "c"):
        (tmp_path / name).touch()
    os.utime(tmp_path / ".a.0.partial", (time.time() - 1000,) * 2)
    os.utime(tmp_path / "c", (time.time() - 1000,) * 2)
    remove_leftovers(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".b.0.partial", "c"]


def test_small_file_needs_little_memory(tmp_path: Path) -> None:
    """The limit of a file of weights is 4 GB."""
    path = tmp_path / "file"
    path.write_bytes(b"1" * 1000)
    tracemalloc.start()
    try:
        assert read_file(path, 2**32) == b"1" * 1000
        assert tracemalloc.get_traced_memory()[1] < 2**21
    finally:
        tracemalloc.stop()

"""Tests of the cache of libraries: checks before a library is loaded."""

import os
from pathlib import Path

import pytest

from lockstep.compiling import cache as library_cache


@pytest.fixture(name="stored")
def fixture_stored(tmp_path: Path) -> Path:
    """Store a library in a cache, and return it."""
    library_cache.check_folder(tmp_path / "cache")
    (tmp_path / "built.so").write_bytes(bytes(range(256)) * 40)
    library_cache.store(tmp_path / "built.so", tmp_path / "cache" / "a1.so")
    return tmp_path / "cache" / "a1.so"


@pytest.mark.parametrize("damage", ["truncated", "changed", "empty", "no record", "broken record", "other record"])
def test_damaged_library_is_detected(stored: Path, damage: str) -> None:
    content, record = stored.read_bytes(), stored.with_suffix(".json")
    assert library_cache.find_defect(stored) is None
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
    assert library_cache.find_defect(stored) == reason


def test_missing_library_is_no_defect(tmp_path: Path) -> None:
    assert library_cache.find_defect(tmp_path / "a1.so") == ""


def test_folder_is_created_for_the_user_alone(tmp_path: Path) -> None:
    library_cache.check_folder(tmp_path / "new" / "cache")
    assert (tmp_path / "new" / "cache").stat().st_mode & 0o777 == 0o700


def test_folder_that_other_users_can_write_is_refused(stored: Path) -> None:
    stored.parent.chmod(0o777)
    with pytest.raises(library_cache.CacheUnusable, match=r"is writable by other users \(run `chmod go-w .*`\)$"):
        library_cache.check_folder(stored.parent)
    stored.parent.chmod(0o500)  # libraries of a read-only cache are used
    library_cache.check_folder(stored.parent)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can change the owner of a folder")
def test_folder_of_another_user_is_refused(stored: Path) -> None:
    os.chown(stored.parent, 65534, 65534)
    with pytest.raises(library_cache.CacheUnusable, match=r"belongs to another user$"):
        library_cache.check_folder(stored.parent)


def test_symbolic_link_as_lock_is_not_followed(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("content")
    (stored.parent / "lock-a").symlink_to(tmp_path / "target")
    with pytest.raises(library_cache.CacheUnusable, match="can't be written"):
        library_cache.try_lock(stored)
    assert (tmp_path / "target").read_text() == "content"


def test_cache_keeps_the_most_recently_used_libraries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(library_cache, "_MAX_LIBRARIES", 2)
    for age, name in enumerate("cab"):
        (tmp_path / f"{name}.so").touch()
        (tmp_path / f"{name}.json").touch()
        os.utime(tmp_path / f"{name}.so", (age, age))
    library_cache.clean_up(tmp_path / "d.so")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.json", "a.so", "b.json", "b.so"]

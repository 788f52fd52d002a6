"""Processes that are measured."""

import os
import sys

import pytest

from lockstep.processes.children import Failed, child, own, own_environment


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_what_fails_is_told_with_its_last_words() -> None:
    code = "import sys; print('first', file=sys.stderr); print('last words', file=sys.stderr); sys.exit(3)"
    with pytest.raises(Failed, match="ended with code 3: last words"), child(python(code), os.environ):
        pass
    with child(python(code), os.environ, succeeds=(0, 3)):
        pass
    with pytest.raises(Failed, match="/nowhere/program can't be run"), child(["/nowhere/program"], os.environ):
        pass


def test_an_exception_ends_the_process() -> None:
    with pytest.raises(KeyboardInterrupt), child(python("import time; time.sleep(600)"), os.environ) as process:
        raise KeyboardInterrupt
    assert process.returncode == -9


def test_own_modules_are_found_from_anywhere(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lockstep.py").write_text("raise SystemExit(7)")
    with child(own("lockstep", "--version"), own_environment()) as process:
        assert process.stdout is not None
        assert process.stdout.read().startswith("lockstep ")

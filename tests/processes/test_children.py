"""Tests of child processes with captured output."""

import os
import sys

import pytest

from lockstep.processes.children import ProcessFailed, child, module_command, module_environment


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_failure_is_reported_with_the_last_line() -> None:
    code = "import sys; print('first', file=sys.stderr); print('last line', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ProcessFailed, match="ended with code 3: last line"), child(python(code), os.environ):
        pass
    with child(python(code), os.environ, succeeds=(0, 3)):
        pass
    with pytest.raises(ProcessFailed, match="/nowhere/program can't be run"), child(["/nowhere/program"], os.environ):
        pass


def test_exception_in_the_block_kills_the_process() -> None:
    with pytest.raises(KeyboardInterrupt), child(python("import time; time.sleep(600)"), os.environ) as process:
        raise KeyboardInterrupt
    assert process.returncode == -9


def test_modules_are_found_from_any_working_folder(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lockstep.py").write_text("raise SystemExit(7)")
    with child(module_command("lockstep", "--version"), module_environment()) as process:
        assert process.stdout is not None
        assert process.stdout.read().startswith("lockstep ")

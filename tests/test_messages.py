"""Parts of messages."""

import contextlib
import sys
from pathlib import Path

import pytest

from lockstep.messages import counted, one_line, print_warning


@pytest.mark.parametrize(("number", "text"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks"), (1_200, "1,200 ranks")])
def test_numbers_have_a_noun_in_singular_or_plural(number: int, text: str) -> None:
    assert counted(number, "rank") == text


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("two\n  lines "), "two lines"), (ValueError(), "ValueError"), (KeyError("a\nb"), r"'a\nb'")],
)
def test_an_error_is_one_line(error: Exception, line: str) -> None:
    assert one_line(error) == line


def test_warning_on_a_full_disk_is_dropped(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    print_warning("a line")
    assert capsys.readouterr().err == "lockstep: a line\n"
    warned = []
    with contextlib.suppress(OSError), Path("/dev/full").open("w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        print_warning("a line")
        warned.append(True)
    monkeypatch.undo()
    assert warned  # the file itself can't be closed without an error

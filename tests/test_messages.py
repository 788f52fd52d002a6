"""Parts of messages."""

import pytest

from lockstep.messages import counted, one_line


@pytest.mark.parametrize(("number", "text"), [(0, "0 ranks"), (1, "1 rank"), (2, "2 ranks"), (1_200, "1,200 ranks")])
def test_numbers_have_a_noun_in_singular_or_plural(number: int, text: str) -> None:
    assert counted(number, "rank") == text


@pytest.mark.parametrize(
    ("error", "line"),
    [(ValueError("two\n  lines "), "two lines"), (ValueError(), "ValueError"), (KeyError("a\nb"), r"'a\nb'")],
)
def test_an_error_is_one_line(error: Exception, line: str) -> None:
    assert one_line(error) == line

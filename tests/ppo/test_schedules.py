"""Tests of schedules: all kinds, their ends, and one line for invalid text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.ppo.schedules import Schedule
from lockstep.ppo.settings import PPOConfig


@pytest.mark.parametrize(
    ("text", "values"),  # at 0, ¼, ½, ¾, 1
    [
        (3e-4, [3e-4] * 5),
        (2, [2] * 5),
        ("0.5", [0.5] * 5),
        ("linear(1, 0)", [1, 0.75, 0.5, 0.25, 0]),
        (" linear ( 0 , 2e0 ) ", [0, 0.5, 1, 1.5, 2]),
        # (1 + cos πp) / 2, cos 45° = 0.70710678
        ("cosine(1, 0)", [1, 0.85355339, 0.5, 0.14644661, 0]),
        ("piecewise(0: 1, 0.5: 0.1, 1: 0)", [1, 0.55, 0.1, 0.05, 0]),
        ("piecewise(0.25: 4, 0.75: 2)", [4, 4, 3, 2, 2]),  # constant before the first and after the last point
        ("piecewise(0.5: 7)", [7] * 5),
    ],
)
def test_values_of_schedules(text: float | str, values: list[float]) -> None:
    schedule = Schedule.parse(text)
    assert [schedule(progress / 4) for progress in range(5)] == pytest.approx(values, abs=1e-8)


def test_the_values_at_both_ends_are_exact() -> None:
    for kind in ("linear", "cosine"):
        schedule = Schedule.parse(f"{kind}(0.3, 0.1)")
        assert schedule(0.0) == 0.3
        assert schedule(1.0) == 0.1


INVALID = [
    "", " ", "fast", "linear", "linear()", "linear(1)", "linear(1, 2, 3)", "linear(1, )", "linear(a, b)", "linear(1, 0",
    "linear(1, 0) + 1", "exponential(1, 0)", "cosine(1: 0)", "piecewise()", "piecewise(1, 0)", "piecewise(0: 1, 0: 2)",
    "piecewise(0.5: 1, 0.2: 2)", "piecewise(-0.1: 1)", "piecewise(0: 1, 1.1: 2)", "piecewise(0: 1: 2)", "piecewise(nan: 1)",
    "linear(-1, 0)", "linear(nan, 0)", "linear(inf, 0)", "nan", "inf", "-1", -1, -0.1, float("nan"), float("inf"), 10**400,
    "linear(1,\n0)\nmore", "__import__('os')",
]  # fmt: skip


@pytest.mark.parametrize("text", INVALID, ids=lambda text: repr(text)[:30])
def test_invalid_schedules_raise_one_line_that_names_the_field(text: float | str) -> None:
    with pytest.raises(ValueError, match=r"^ppo\.clip is ") as caught:
        PPOConfig(clip=text)
    message = str(caught.value)
    assert "\n" not in message
    assert "linear(a, b)" in message


@given(st.text(max_size=30))
def test_any_text_gives_a_schedule_or_one_line(text: str) -> None:
    try:
        schedule = Schedule.parse(text, "ppo.clip")
    except ValueError as error:
        assert str(error).startswith("ppo.clip is ")  # noqa: PT017
        assert len(str(error).splitlines()) == 1  # noqa: PT017
    else:
        assert schedule(0.5) >= 0

"""What the terminal shows."""

import pytest

from lockstep.run.progress import Bar, display

METRICS = {
    "env_steps": 2000, "return_mean": 8.0, "return_mean_20": None, "fps": 1234.5, "approx_kl": 0.25, "entropy": None,
}  # fmt: skip


def test_lines_are_complete_and_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    (lines,) = display("lines", 0, 3)
    for iteration in (1, 2, 3):
        lines.write(METRICS | {"iteration": iteration})
    lines.flush()
    lines.close()
    rest = "steps 2,000  return 8  fps 1,234  kl 0.25  entropy -"
    assert capsys.readouterr().out.splitlines() == [f"iteration {iteration}/3  {rest}" for iteration in (1, 2, 3)]


def test_the_bar_ends_with_the_last_state(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar(0, 900)
    for iteration in range(1, 901):
        bar.write(METRICS | {"iteration": iteration, "return_mean_20": float(iteration)})
    bar.flush()
    bar.close()
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "return      900" in shown.err.splitlines()[-1]
    assert "100%" in shown.err.splitlines()[-1]


def test_what_is_shown_where() -> None:
    assert display("off", 0, 3) == []
    assert type(display("auto", 0, 3)[0]).__name__ == "Lines"  # here the output is piped

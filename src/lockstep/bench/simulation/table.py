"""Table of predictions for a terminal of 80 columns."""

from collections.abc import Sequence

from lockstep.bench.simulation.prediction import Prediction

__all__ = ["table"]

_WHOLE = 1000
"""Minimum number of milliseconds that is shown without decimals."""


def table(predictions: Sequence[Prediction]) -> list[str]:
    """Format the predictions as lines of at most 80 columns."""
    lines = [
        f"{'ranks':>6}{'hosts':>6}{'steps/s':>13}{'iteration':>12}{'10 % - 90 %, ms':>20}{'efficiency':>11}  bottleneck"
    ]
    for row in predictions:
        ranks = f"{row.ranks}{'*' * row.more_ranks_than_cores}"
        spread = f"{_milliseconds(row.iteration_seconds_low)} - {_milliseconds(row.iteration_seconds_high)}"
        lines.append(
            f"{ranks:>6}{row.hosts:>6}{row.steps_per_second:>13,.0f}"
            f"{_milliseconds(row.iteration_seconds):>12}{spread:>20}{row.efficiency:>11.1%}  {row.bottleneck}"
        )
    if any(row.more_ranks_than_cores for row in predictions):
        lines += ["", "*: more ranks than cores per host, so ranks share cores"]
    return lines


def _milliseconds(seconds: float) -> str:
    milliseconds = seconds * 1e3
    return f"{milliseconds:,.1f}" if milliseconds < _WHOLE else f"{milliseconds:,.0f}"

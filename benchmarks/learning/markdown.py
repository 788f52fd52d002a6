"""Numbers as text in Markdown tables."""

import math

from aggregate import Estimate


def interval(value: Estimate) -> str:
    """Format an estimate with the ends of its interval, if it has one."""
    if math.isnan(value.low):
        return number(value.value)
    return f"{number(value.value)} [{number(value.low)}, {number(value.high)}]"


def number(value: float) -> str:
    """Format a number with four significant digits, or as a whole number from 1,000 on."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 1 else f"{value:.2f}"

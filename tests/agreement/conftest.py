"""Runs to compare, through the command line."""

from pathlib import Path

import pytest


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    """Processes that are forked from one would have the same order of sets, and agree for no better reason."""
    return environ | {"PYTHONHASHSEED": "random"}


@pytest.fixture
def same(run_cli, tmp_path: Path):
    """`same(a, b, iterations)`: `lockstep diff` finds them identical for that many iterations."""

    def check(a: object, b: object, iterations: int) -> None:
        rc, out, err = run_cli("diff", a, b)
        assert (rc, out.strip()) == (0, f"identical for {iterations} iterations"), out + err

    return check

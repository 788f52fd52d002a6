"""Runs to compare, through the command line."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from subprocess import Popen

import pytest
from tests.agreement.matrix import Trained, trainer
from tests.conftest import TRAINS, plain_environ
from tests.warm import Forked, Warm, serving

UNLIKE = {"PYTHONHASHSEED": "random"}
"""Processes that are forked from one have the same order of sets, and would agree for no better reason."""


@pytest.fixture(scope="session", name="trained")
def fixture_trained() -> Iterator[Trained]:
    """`trained(folder, matrix, plan, backend, kind)` trains the columns of a matrix: every column's digests, one per iteration."""
    with ExitStack() as servers:
        yield trainer(servers)


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    """For processes that have nothing in common, not even the order of sets."""
    return environ | UNLIKE


class Turns:
    """Two that are forked by turns, so that what is compared comes from both."""

    def __init__(self, *servers: Warm) -> None:
        for server in servers:  # ranks of one run come from both as well
            server.peers = [other.address for other in servers]
        self._servers = cycle(servers)
        self.suits = servers[0].suits

    def start(self, *words: object, cwd: Path, environ: dict[str, str]) -> Forked:
        """See `Warm.start`."""
        return next(self._servers).start(*words, cwd=cwd, environ=environ)

    def begin(self, *words: object, cwd: Path, environ: dict[str, str]) -> "Popen[str]":
        """See `Warm.begin`."""
        return next(self._servers).begin(*words, cwd=cwd, environ=environ)


@pytest.fixture(scope="session")
def warm() -> Iterator[Turns]:
    """Starts processes that have imported PyTorch already."""
    own = plain_environ() | UNLIKE
    with serving(own, *TRAINS) as one, serving(own, *TRAINS) as other:
        yield Turns(one, other)


@pytest.fixture
def same(run_cli):
    """`same(a, b, iterations)`: `lockstep diff` finds them identical for that many iterations."""

    def check(a: object, b: object, iterations: int) -> None:
        rc, out, err = run_cli("diff", a, b)
        assert (rc, out.strip()) == (0, f"identical for {iterations} iterations"), out + err

    return check

"""Fixtures for the comparison of runs."""

from collections.abc import Iterator
from contextlib import ExitStack
from itertools import cycle
from pathlib import Path
from subprocess import Popen

import pytest
from tests.agreement.matrix import Trained, trainer
from tests.conftest import TRAINS, plain_environ
from tests.warm import ForkedProgram, Warm, serving

RANDOM_HASHES = {"PYTHONHASHSEED": "random"}
"""Environment variables of all processes. With a fixed hash seed the order of sets would be equal, which could hide differences."""


@pytest.fixture(scope="session", name="trained")
def fixture_trained() -> Iterator[Trained]:
    """Return `trained(folder, matrix, plan, backend, kind)`, which trains the columns of a matrix and returns the digests of each column, one per iteration."""
    with ExitStack() as servers:
        yield trainer(servers)


@pytest.fixture
def environ(environ: dict[str, str]) -> dict[str, str]:
    """Environment variables with a random hash seed."""
    return environ | RANDOM_HASHES


class AlternatingServers:
    """Two servers used in turn, so that the compared processes do not all come from one server."""

    def __init__(self, *servers: Warm) -> None:
        for server in servers:  # ranks of one run come from both as well
            server.peers = [other.address for other in servers]
        self._servers = cycle(servers)
        self.suits = servers[0].suits

    def start(self, *words: object, cwd: Path, environ: dict[str, str]) -> ForkedProgram:
        """See `Warm.start`."""
        return next(self._servers).start(*words, cwd=cwd, environ=environ)

    def begin(self, *words: object, cwd: Path, environ: dict[str, str]) -> "Popen[str]":
        """See `Warm.begin`."""
        return next(self._servers).begin(*words, cwd=cwd, environ=environ)


@pytest.fixture(scope="session")
def warm() -> Iterator[AlternatingServers]:
    """Two servers that start processes with PyTorch already imported."""
    variables = plain_environ() | RANDOM_HASHES
    with serving(variables, *TRAINS) as one, serving(variables, *TRAINS) as other:
        yield AlternatingServers(one, other)


@pytest.fixture
def same(run_cli):
    """Return `same(a, b, iterations)`, which checks that `lockstep diff` reports that many identical iterations."""

    def check(a: object, b: object, iterations: int) -> None:
        rc, out, err = run_cli("diff", a, b)
        assert (rc, out.strip()) == (0, f"identical for {iterations} iterations"), out + err

    return check

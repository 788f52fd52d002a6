"""Fixtures for the comparison of runs."""

from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from subprocess import Popen

import pytest
from tests.agreement.matrix import Trained, trainer
from tests.conftest import TRAINS, plain_environ
from tests.warm import ForkedProgram, Warm, connect, serving


class AlternatingServers:
    """Two servers used in turn, so that the compared processes do not all come from one server."""

    def __init__(self, *servers: Warm) -> None:
        for server in servers:  # ranks of one run come from both as well
            server.peers = [other.address for other in servers]
        self.servers, self._turns = servers, cycle(servers)
        self.suits = servers[0].suits

    def start(self, *words: object, cwd: Path, environ: dict[str, str], module: str = "lockstep") -> ForkedProgram:
        """See `Warm.start`."""
        return next(self._turns).start(*words, cwd=cwd, environ=environ, module=module)

    def begin(self, *words: object, cwd: Path, environ: dict[str, str]) -> "Popen[str]":
        """See `Warm.begin`."""
        return next(self._turns).begin(*words, cwd=cwd, environ=environ)


@pytest.fixture(scope="session")
def warm(warm: Warm, servers: list[str]) -> Iterator[AlternatingServers]:
    """Two servers that start processes with PyTorch already imported: the one of all tests and another."""
    if servers[1:]:
        yield AlternatingServers(warm, connect(servers[1], plain_environ()))
    else:
        with serving(plain_environ(), *TRAINS) as other:
            yield AlternatingServers(warm, other)


@pytest.fixture(scope="session", name="trained")
def fixture_trained(warm: AlternatingServers) -> Trained:
    """Return `trained(folder, matrix, plan, backend, kind)`, which trains the columns of a matrix and returns the digests of each column, one per iteration."""
    return trainer(*warm.servers)


@pytest.fixture
def same(run_cli):
    """Return `same(a, b, iterations)`, which checks that `lockstep diff` reports that many identical iterations."""

    def check(a: object, b: object, iterations: int) -> None:
        rc, out, err = run_cli("diff", a, b)
        assert (rc, out.strip()) == (0, f"identical for {iterations} iterations"), out + err

    return check

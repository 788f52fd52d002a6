"""Groups of real processes. What each of them does is in member.py."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from lockstep.group.memory import create_memory

SOURCE = Path(__file__).parents[2] / "src"

Ranks = list["subprocess.Popen[str]"]


@pytest.fixture(name="started")
def fixture_started() -> Iterator[Ranks]:
    """Processes of a test, ended with it."""
    ranks: Ranks = []
    yield ranks
    for rank in ranks:
        rank.kill()
        rank.communicate()


def start(
    ranks: Ranks, kind: str, scenario: str, size: int, meeting: str = "-", descriptors: Sequence[int] = ()
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    member = str(Path(__file__).with_name("member.py"))
    for rank in range(size):
        command = [sys.executable, member, kind, scenario, str(rank), str(size), meeting]
        ranks.append(
            subprocess.Popen(
                [*command, *map(str, descriptors)],
                pass_fds=descriptors,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )


def start_on_shared_memory(ranks: Ranks, scenario: str, size: int) -> None:
    descriptor = create_memory(size)
    start(ranks, "shared", scenario, size, descriptors=[descriptor])
    os.close(descriptor)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_shared_memory_gives_the_bits_of_one_rank(size: int, started: Ranks) -> None:
    start_on_shared_memory(started, "work", size)
    for rank in started:
        printed, errors = rank.communicate()
        assert rank.returncode == 0, printed + errors


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["reduce", "gather", "barrier", "part", "receive"])
def test_a_killed_rank_is_named_to_all_the_others(verb: str, started: Ranks) -> None:
    start_on_shared_memory(started, verb, 3)
    *others, killed = started
    for rank in others:  # the killed one is not waited for: as a zombie it must count as ended too
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        line = f"rank 2 (process {killed.pid} on host {socket.gethostname()}) is lost in phase 'killed': its process has ended\n"
        assert printed == line
    assert killed.wait() == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.skip(reason="to come")
def test_the_network_gives_the_same_bits_and_finds_that_it_is_one_host(started: Ranks, tmp_path: Path) -> None:
    start(started, "network", "work", 3, meeting=f"file://{tmp_path}/meeting")
    *others, killed = started
    assert killed.wait() == -signal.SIGKILL
    for rank in others:
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        assert re.match(
            rf"a peer of rank [01] \(on host {socket.gethostname()}\) is lost in phase 'gradients': .", printed
        )
        assert printed.count("\n") == 1

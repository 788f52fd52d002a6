"""Tests of ranks on two hosts, which are two network namespaces of this machine."""

import re
import signal
from collections.abc import Callable, Iterator

import pytest
from tests.group.members import Ranks, member
from tests.machines import ADDRESSES, NAMES, disconnect_second_host, on_host, two_hosts

pytestmark = pytest.mark.slow

SIZE = 3


@pytest.fixture(name="hosts", scope="module")
def fixture_hosts() -> Iterator[None]:
    with two_hosts():
        yield


@pytest.fixture(name="begin")
def fixture_begin(hosts: None, started: Ranks) -> Callable[[str], Ranks]:
    """Return `begin(scenario)`, which starts ranks 0 and 1 on the first host and rank 2 on the second."""

    def begin(scenario: str) -> Ranks:
        for rank in range(SIZE):
            address = f"tcp://{ADDRESSES[0]}:29517"
            started.append(member("machines", scenario, rank, SIZE, address, -1, prefix=on_host(rank // 2)))
        return started

    return begin


def test_two_hosts_give_the_results_of_one_rank(begin: Callable[[str], Ranks]) -> None:
    for rank in begin("work"):
        printed, errors = rank.communicate()
        assert rank.returncode == 0, printed + errors


@pytest.mark.parametrize("operation", ["reduce", "background", pytest.param("receive", marks=pytest.mark.exhaustive)])
def test_rank_killed_on_the_other_host_is_reported(operation: str, begin: Callable[[str], Ranks]) -> None:
    *others, killed = begin(operation)
    for rank in others:
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        assert printed == f"rank 2 on host {NAMES[1]} is lost in phase 'lost': its connection was closed\n"
    assert killed.wait() == -signal.SIGKILL


def test_unreachable_host_is_detected_on_both_hosts(begin: Callable[[str], Ranks]) -> None:
    ranks = begin("partition")
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "running\n"
    disconnect_second_host()
    lines = []
    for rank in ranks:
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        lines.append(printed)
    location = r"on host {} is lost in phase 'lost': "
    silent = r"no response within 3 s \(see runtime.timeout\)\n"
    first, second = (location.format(name) for name in NAMES)
    # the ranks of the first host wait equally long for the second one; if one of them ends first, the other may notice that
    found = [re.fullmatch(rf"rank 2 {second}{silent}", line) is not None for line in lines[:2]]
    ended = [re.fullmatch(rf"rank [01] {first}its connection was closed\n", line) is not None for line in lines[:2]]
    assert any(found), lines
    assert all(map(max, found, ended)), lines
    assert re.fullmatch(rf"rank [01] {first}{silent}", lines[2]), lines

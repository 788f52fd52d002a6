"""A world on two hosts, which are two network namespaces of this machine."""

import re
import signal
from collections.abc import Callable, Iterator

import pytest
from tests.group.members import Ranks, member
from tests.machines import ADDRESSES, NAMES, on_host, two_hosts, unplug

pytestmark = [pytest.mark.slow, pytest.mark.serial]

SIZE = 3


@pytest.fixture(name="hosts", scope="module")
def fixture_hosts() -> Iterator[None]:
    with two_hosts():
        yield


@pytest.fixture(name="begin")
def fixture_begin(hosts: None, started: Ranks) -> Callable[[str], Ranks]:
    """`begin(scenario)`: ranks 0 and 1 on the first host, rank 2 on the second."""

    def begin(scenario: str) -> Ranks:
        for rank in range(SIZE):
            where = {"prefix": on_host(rank // 2)}
            started.append(member("machines", scenario, rank, SIZE, f"tcp://{ADDRESSES[0]}:29517", -1, **where))
        return started

    return begin


def test_a_world_on_two_hosts_gives_what_one_rank_gets(begin: Callable[[str], Ranks]) -> None:
    for rank in begin("work"):
        printed, errors = rank.communicate()
        assert rank.returncode == 0, printed + errors


@pytest.mark.parametrize("verb", ["reduce", "receive"])
def test_a_rank_that_is_killed_on_the_other_host_is_named(verb: str, begin: Callable[[str], Ranks]) -> None:
    *others, killed = begin(verb)
    for rank in others:
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        assert printed == f"rank 2 on host {NAMES[1]} is lost in phase 'lost': its connection has ended\n"
    assert killed.wait() == -signal.SIGKILL


def test_a_host_that_can_no_longer_be_reached_is_noticed_on_both_sides(begin: Callable[[str], Ranks]) -> None:
    ranks = begin("apart")
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "going on\n"
    unplug()
    for place, rank in enumerate(ranks):
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        lost, host = ("2", NAMES[1]) if place < 2 else ("[01]", NAMES[0])
        late = r"it did not arrive within 3 s \(see runtime.timeout\)"
        assert re.fullmatch(rf"rank {lost} on host {host} is lost in phase 'lost': {late}\n", printed)

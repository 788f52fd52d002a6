"""A world on two hosts, which are two network namespaces of this machine."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.group.members import Ranks, member

pytestmark = [pytest.mark.slow, pytest.mark.serial]

NAMES = tuple(f"lockstep-{os.getpid()}-{end}" for end in "ab")
ADDRESSES = ("10.213.7.1", "10.213.7.2")
SIZE = 3


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def plug(place: int) -> None:
    """A host of its own: a namespace with one end of a cable, that knows both hosts' names."""
    name, cable = NAMES[place], f"ls{os.getpid()}{place}"
    ip("link", "set", cable, "netns", name)
    ip("-n", name, "address", "add", f"{ADDRESSES[place]}/24", "dev", cable)
    ip("-n", name, "link", "set", cable, "up")
    ip("-n", name, "link", "set", "lo", "up")
    hosts = Path("/etc/netns") / name / "hosts"
    hosts.parent.mkdir(parents=True)
    lines = [f"{address} {host}" for address, host in zip(ADDRESSES, NAMES, strict=True)]
    hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))


@pytest.fixture(name="hosts", scope="module")
def fixture_hosts() -> Iterator[None]:
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("two hosts on one machine need root, iproute2 and unshare")
    try:
        for name in NAMES:
            ip("netns", "add", name)
        ip("link", "add", f"ls{os.getpid()}0", "type", "veth", "peer", "name", f"ls{os.getpid()}1")
        for place in range(2):
            plug(place)
        yield
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


@pytest.fixture(name="begin")
def fixture_begin(hosts: None, started: Ranks) -> Callable[[str], Ranks]:
    """`begin(scenario)`: ranks 0 and 1 on the first host, rank 2 on the second."""

    def begin(scenario: str) -> Ranks:
        for rank in range(SIZE):
            name = NAMES[rank // 2]
            named = ("sh", "-c", f'hostname {name} && exec "$@"', "sh")
            prefix = ("ip", "netns", "exec", name, "unshare", "--uts", *named)
            started.append(member("machines", scenario, rank, SIZE, f"tcp://{ADDRESSES[0]}:29517", -1, prefix=prefix))
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
    ip("-n", NAMES[1], "link", "set", f"ls{os.getpid()}1", "down")
    for place, rank in enumerate(ranks):
        printed, errors = rank.communicate()
        assert rank.returncode == 3, errors
        lost, host = ("2", NAMES[1]) if place < 2 else ("[01]", NAMES[0])
        late = r"it did not arrive within 3 s \(runtime.timeout\)"
        assert re.fullmatch(rf"rank {lost} on host {host} is lost in phase 'lost': {late}\n", printed)

"""Two hosts on this machine: network namespaces with separate host names, connected by a virtual Ethernet pair."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = tuple(f"lockstep-{os.getpid()}-{end}" for end in "ab")
ADDRESSES = ("10.213.7.1", "10.213.7.2")


def run_ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def connect_host(place: int) -> None:
    """Move one end of the virtual Ethernet pair into a namespace, and configure its address and the names of both hosts."""
    name, cable = NAMES[place], f"ls{os.getpid()}{place}"
    run_ip("link", "set", cable, "netns", name)
    run_ip("-n", name, "address", "add", f"{ADDRESSES[place]}/24", "dev", cable)
    run_ip("-n", name, "link", "set", cable, "up")
    run_ip("-n", name, "link", "set", "lo", "up")
    hosts = Path("/etc/netns") / name / "hosts"
    hosts.parent.mkdir(parents=True)
    lines = [f"{address} {host}" for address, host in zip(ADDRESSES, NAMES, strict=True)]
    hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))


@contextmanager
def two_hosts() -> Iterator[None]:
    """Create two hosts for the duration of the block. Skip the test if that is not possible."""
    if os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("two hosts on one machine need root, iproute2 and unshare")
    try:
        for name in NAMES:
            run_ip("netns", "add", name)
        run_ip("link", "add", f"ls{os.getpid()}0", "type", "veth", "peer", "name", f"ls{os.getpid()}1")
        for place in range(2):
            connect_host(place)
        yield
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    finally:
        for name in NAMES:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)


def on_host(place: int) -> tuple[str, ...]:
    """Return the words before a command that run it on the first (0) or second (1) host."""
    name = NAMES[place]
    return ("ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh")


def disconnect_second_host() -> None:
    """Disconnect the second host."""
    run_ip("-n", NAMES[1], "link", "set", f"ls{os.getpid()}1", "down")

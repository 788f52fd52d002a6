"""Two hosts on this machine, for benchmarks: network namespaces with separate host names, connected by a virtual Ethernet pair."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ADDRESSES = ("10.213.8.1", "10.213.8.2")
CABLE = "lsb"
"""Beginning of the names of network interfaces."""


class Host(NamedTuple):
    """A host."""

    name: str
    address: str
    cable: str
    """Its network interface."""
    command: list[str]
    """The words before a command that run it on this host."""


def run_ip(*words: str) -> None:
    """Run `ip`."""
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def available() -> bool:
    """Return True if this user can create hosts, which takes root, iproute2 and unshare."""
    return os.geteuid() == 0 and all(map(shutil.which, ("ip", "unshare")))


@contextmanager
def two_hosts(rate: str | None = None) -> Iterator[list[Host]]:
    """Create two hosts, between which at most `rate`, such as `10gbit`, can be sent; None: no limit."""
    names = [f"lockstep-bench-{os.getpid()}-{end}" for end in "ab"]
    cables = [f"{CABLE}{os.getpid()}{end}" for end in "ab"]
    lines = [f"{address} {name}" for address, name in zip(ADDRESSES, names, strict=True)]
    try:
        for name in names:
            run_ip("netns", "add", name)
        run_ip("link", "add", cables[0], "type", "veth", "peer", "name", cables[1])
        for name, cable, address in zip(names, cables, ADDRESSES, strict=True):
            run_ip("link", "set", cable, "netns", name)
            run_ip("-n", name, "address", "add", f"{address}/24", "dev", cable)
            for device in (cable, "lo"):
                run_ip("-n", name, "link", "set", device, "up")
            if rate is not None:
                limit = ["tbf", "rate", rate, "burst", "1mb", "latency", "50ms"]
                subprocess.run(["tc", "-n", name, "qdisc", "add", "dev", cable, "root", *limit], check=True)
            hosts = Path("/etc/netns") / name / "hosts"
            hosts.parent.mkdir(parents=True)
            hosts.write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))
        yield [
            Host(
                name,
                address,
                cable,
                ["ip", "netns", "exec", name, "unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh"],
            )
            for name, cable, address in zip(names, cables, ADDRESSES, strict=True)
        ]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True)
            shutil.rmtree(Path("/etc/netns") / name, ignore_errors=True)

"""The store of torch.distributed, through which ranks exchange their addresses."""

import ipaddress
import socket
from contextlib import suppress
from datetime import timedelta
from urllib.parse import urlsplit

from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous

__all__ = ["is_loopback", "make_store"]

_TCP = "tcp://"


def make_store(address: str, rank: int, size: int, timeout: timedelta) -> Store:
    """Connect to the store at an address of the forms of `runtime.rendezvous`.

    For `tcp://HOST:PORT`, rank 0 listens only on the interface with HOST's address; PyTorch alone would listen on all interfaces.
    Raises RuntimeError or ValueError as PyTorch does.
    """
    listener = _listen(address) if rank == 0 and address.startswith(_TCP) else None
    if listener is None:
        store, _, _ = next(rendezvous(address, rank, size, timeout=timeout))
        return store  # type: ignore[no-any-return]
    host, port = listener.getsockname()[:2]
    store = TCPStore(host, port, size, is_master=True, timeout=timeout, master_listen_fd=listener.detach())
    assert isinstance(store, Store)
    return store


def is_loopback(address: str) -> bool:
    """Return True if only processes of this host can reach a `tcp://HOST:PORT`."""
    host = urlsplit(address).hostname or ""
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _listen(address: str) -> socket.socket | None:
    """Listen at a `tcp://HOST:PORT`. None: PyTorch has to listen, or to say why it can't."""
    parts = urlsplit(address)
    with suppress(OSError, ValueError):
        family, kind, protocol, _, target = socket.getaddrinfo(parts.hostname, parts.port, type=socket.SOCK_STREAM)[0]
        # systems may map the name of a host to a loopback address, which other hosts can't reach
        if ipaddress.ip_address(target[0]).is_loopback and not is_loopback(address):
            return None
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen()
        except OSError:  # for example because the address is translated between networks
            listener.close()
            raise
        return listener
    return None

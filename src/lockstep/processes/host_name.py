"""Name of this host, for messages and records."""

import socket

__all__ = ["host_name"]


def host_name() -> str:
    """Return the name of this host, as the operating system reports it."""
    return socket.gethostname()

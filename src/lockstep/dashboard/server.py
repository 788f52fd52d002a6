"""Server of the dashboard, on the loopback interface."""

import os
import secrets
import socket
from collections.abc import Callable
from pathlib import Path

__all__ = ["PORT", "serve"]

PORT = 8421
"""Default port."""
_HOST = "127.0.0.1"
_NICE = 10
"""Niceness of the server, so that it takes CPU time from training only if a core is idle or nearly so."""
_END_TIMEOUT = 1
"""Seconds that responses, such as videos, have to end after Ctrl-C."""


def serve(root: Path, port: int | None, announce: Callable[[str], None]) -> None:
    """Show the runs in `root` until Ctrl-C. Call `announce` with the address, which contains the token, when it can be opened.

    `port` None selects `PORT`, or any free port if that one is in use; 0 selects any free port. Raises ValueError if the port is in
    use or a package is missing, KeyboardInterrupt after Ctrl-C.
    """
    try:
        import uvicorn

        from lockstep.dashboard.app import make_app
    except ImportError as error:
        raise ValueError(
            f"the dashboard needs Starlette and uvicorn ({error.name} is missing); pip install 'lockstep-rl[dashboard]'"
        ) from None
    token = secrets.token_urlsafe(24)
    app = make_app(root, token)
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        loop="asyncio",
        lifespan="off",
        server_header=False,
        access_log=False,
        log_level="critical",  # the application prints its errors, and a response that Ctrl-C interrupts is not an error
        timeout_graceful_shutdown=_END_TIMEOUT,
    )
    with _listen(port) as listener:
        os.nice(_NICE)
        announce(f"http://{_HOST}:{listener.getsockname()[1]}/?token={token}")
        uvicorn.Server(config).run(sockets=[listener])


def _listen(port: int | None) -> socket.socket:
    try:
        return socket.create_server((_HOST, PORT if port is None else port))
    except OSError as error:
        if port is None:
            return socket.create_server((_HOST, 0))
        why = os.strerror(error.errno) if error.errno else str(error)
        raise ValueError(f"--port is {port}: {why}; --port 0 selects a free port") from None

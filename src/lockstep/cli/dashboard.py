"""`lockstep dashboard`: show all runs of a folder in the browser, live."""

import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.run.settings import RunConfig

__all__ = ["main"]

_LAST_PORT = 65_535


def main(argv: Sequence[str]) -> int:
    """Serve the page until Ctrl-C. Return the exit code."""
    parser = Arguments(
        "dashboard",
        "Shows the runs in a folder in the browser, live: their state, overlaid curves, time by phase, videos, and the load of the machine. "
        "The page only reads run folders and is served to this machine alone, at the address that is printed. Ctrl-C ends it.",
    )
    parser.add_argument(
        "folder",
        nargs="?",
        type=Path,
        metavar="DIR",
        help=f"folder that holds runs (default {RunConfig.folder})",
    )
    parser.add_argument(
        "--port", type=whole_number(0), help="port (default 8421, or a free one if that is in use; 0: a free one)"
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    args = parser.read(argv)
    if args.folder is not None and not args.folder.is_dir():
        raise ValueError(f"{args.folder}: there is no such folder")
    if args.folder is not None and (args.folder / "config.json").is_file():
        raise ValueError(f"{args.folder} is a run: name the folder that holds it")
    if args.port is not None and args.port > _LAST_PORT:
        raise ValueError(f"--port is {args.port}: it must be from 0 to {_LAST_PORT}; 0 selects a free port")

    from lockstep.dashboard.server import serve

    def announce(address: str) -> None:
        print(f"{address}\nOpen this address in a browser; Ctrl-C ends the dashboard.", flush=True)
        if args.open:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):
        serve(args.folder or Path(RunConfig.folder), args.port, announce)
    print()  # the terminal shows ^C
    return 0

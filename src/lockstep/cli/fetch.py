"""`lockstep fetch`: download a run from object storage."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.cli.arguments import Arguments
from lockstep.run.settings import RunConfig

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Download the run and return the exit code. Raises ValueError for bad input."""
    parser = Arguments(
        "fetch",
        "Downloads a run that was trained with --run.store, with its complete checkpoints and its metrics. All other commands then read it; "
        "`lockstep resume` continues with it. Nothing of what is downloaded is executed.",
    )
    parser.add_argument("address", metavar="ADDRESS", help="address of the run, such as s3://BUCKET/FOLDER/NAME")
    parser.add_argument("--out", metavar="DIR", default=RunConfig.folder, help="folder for the run (runs)")
    args = parser.read(argv)
    from lockstep.store.fetch import fetch_named

    print(fetch_named(args.address, Path(args.out)))
    return 0

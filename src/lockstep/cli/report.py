"""`lockstep report`: write a run as one HTML file."""

from collections.abc import Sequence

from lockstep.cli.arguments import Arguments
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Write the report and print its path. Return the exit code."""
    parser = Arguments(
        "report",
        "Writes RUN/report.html: outcome, video, learning curves, where the time goes, config, digest and versions, in one file that needs no "
        "network. It shows the newest of RUN/videos (`lockstep play RUN --video`) and the last evaluation (`lockstep eval RUN`).",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or its name in runs/")
    folder = RunFolder.open(locate(parser.read(argv).run))

    from lockstep.report.page import write_report

    print(write_report(folder))
    return 0

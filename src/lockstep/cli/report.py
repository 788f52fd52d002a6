"""`lockstep report`: write a run, or a comparison of several, as one HTML file."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.cli.arguments import Arguments
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate, locate_sweep

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Write the report and print its path. Return the exit code."""
    parser = Arguments(
        "report",
        "Writes an HTML file that needs no network. Of one run, RUN/report.html: outcome, video, learning curves, where the time goes, config, "
        "digest and versions; it shows the newest of RUN/videos (`lockstep play RUN --video`) and the last evaluation (`lockstep eval RUN`). Of "
        "several runs or a sweep: curves, differences of the configs, results with intervals over seeds, and of a search its trials.",
    )
    parser.add_argument(
        "run",
        nargs="+",
        metavar="RUN",
        help="run folder, its name in runs/, or the folder of a sweep, for all its runs",
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the .html file (default: report.html in the folder of the run or sweep; of several, report-compared.html in that of the first run)",
    )
    args = parser.read(argv)
    if args.out and args.out.suffix != ".html":
        raise ValueError(f"--out is {args.out}: it must end in .html")
    sweeps = [locate_sweep(word) for word in args.run]
    paths = [
        path
        for word, sweep in zip(args.run, sweeps, strict=True)
        for path in (sorted(file.parent for file in sweep.glob("runs/*/config.json")) if sweep else [locate(word)])
    ]
    folders = list({path.resolve(): RunFolder.open(path) for path in paths}.values())
    sweep = sweeps[0] if len(args.run) == 1 else None
    if len(folders) == 1 and sweep is None:
        from lockstep.report.page import write_report

        print(write_report(folders[0], args.out))
        return 0
    from lockstep.report.comparison import write_comparison

    default = sweep / "report.html" if sweep else folders[0].path / "report-compared.html"
    print(write_comparison(folders, args.out or default, argv, sweep))
    return 0

"""`lockstep plot`: a run's learning curve."""

from collections.abc import Sequence

from lockstep.cli.arguments import Arguments
from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Draws the curve into the run's plots/return.png and prints where that is."""
    parser = Arguments("plot", "Draws the learning curve: mean return over environment steps.")
    parser.add_argument("run", nargs="+", metavar="RUN", help="a run's folder, or its name in runs/")
    own = parser.read(argv)
    folders = [RunFolder.open(locate(run)) for run in own.run]

    from lockstep.report.curve import draw_curve

    for folder in folders:
        tree = folder.tree()
        goal = decode({"run": tree.get("run")}, Config()).run.solved_return
        path = folder.path / "plots" / "return.png"
        draw_curve(folder.metrics(), folder.path.resolve().name, path, goal)
        print(path)
    return 0

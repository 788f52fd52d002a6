"""A run's policy and the episodes that it plays: for `eval` and `play`."""

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.start import import_again
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate

__all__ = ["Performer", "add_arguments"]


def add_arguments(parser: Arguments, episodes: int) -> None:
    """The arguments that `eval` and `play` share."""
    parser.add_argument("run", metavar="RUN", help="the run's folder, or its name in runs/")
    parser.add_argument(
        "--episodes", type=whole_number(1), default=episodes, metavar="N", help=f"how many (default {episodes})"
    )
    parser.add_argument("--iteration", type=whole_number(1), metavar="K", help="the checkpoint (default the newest)")
    parser.add_argument(
        "--sample", action="store_true", help="draw actions as in training; else the most probable ones"
    )
    parser.add_argument("--env.module", dest="module", metavar="M", help="the module that registers its environment")
    parser.add_argument("--seed", type=whole_number(0), metavar="S", help="of the episodes (default the run's)")


class Performer:
    """Policy and seeds of a command line."""

    def __init__(
        self, run: str, iteration: int | None, sample: bool, seed: int | None, module: str | None = None
    ) -> None:
        """Loads the policy. Raises ValueError in one line when there is no such run or checkpoint."""
        from lockstep.experiment import open_run
        from lockstep.runtime.threads import limit_threads
        from lockstep.trained import evaluation_seeds, load_policy

        self.folder = RunFolder.open(locate(run))
        import_again(open_run(self.folder.path)[1], module)
        self.config, self.policy = load_policy(self.folder, iteration, sample, seed)
        self.seed = self.config.run.seed if seed is None else seed
        self._seeds = evaluation_seeds
        limit_threads(self.config.runtime.threads)

    def seeds(self, count: int) -> list[int]:
        """Of as many episodes."""
        return self._seeds(self.seed, count)

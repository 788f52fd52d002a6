"""A run's policy and the episodes that it plays: for `eval`, `play` and `push`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.start import import_again
from lockstep.run.folder import RunFolder, write_aside

if TYPE_CHECKING:
    from lockstep.report.evaluate import Evaluation

__all__ = ["Performer", "add_arguments"]


def add_arguments(parser: Arguments, episodes: int) -> None:
    """The arguments that `eval` and `play` share."""
    parser.add_argument(
        "run",
        metavar="RUN",
        help="the run's folder, its name in runs/, a checkpoint's folder, or hub:USER/NAME[@REVISION]",
    )
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
        self,
        run: str,
        iteration: int | None = None,
        sample: bool = False,
        seed: int | None = None,
        module: str | None = None,
    ) -> None:
        """Loads the policy. Raises ValueError in one line when there is no such run or checkpoint."""
        from lockstep.experiment.execute import open_run
        from lockstep.experiment.policy import evaluation_seeds, load_policy
        from lockstep.hub.fetching import find
        from lockstep.hub.repository import PREFIX
        from lockstep.runtime.threads import limit_threads

        path, iteration = find(run, iteration)
        folder = RunFolder.open(path)
        import_again(open_run(path)[1], module)
        self.config, self.policy = load_policy(folder, iteration, sample, seed)
        self.place = Path(*run.partition("@")[0].replace(PREFIX, "hub/").split("/")) if run.startswith(PREFIX) else path
        """The folder for what it leaves: the run's, or `hub/USER/NAME` in the current one."""
        self.seed = self.config.run.seed if seed is None else seed
        self._sample = sample
        self._seeds = evaluation_seeds
        limit_threads(self.config.runtime.threads)

    def seeds(self, count: int) -> list[int]:
        """Of as many episodes."""
        return self._seeds(self.seed, count)

    @property
    def film(self) -> Path:
        """Where `record` leaves its video."""
        return self.place / "videos" / f"iteration-{self.policy.iteration:08d}.mp4"

    def record(self, episodes: int) -> list[tuple[float, int]]:
        """Films as many episodes, and gives their returns and lengths. Raises what `record_video` does."""
        from lockstep.envs.catalog import make_one
        from lockstep.report.video import record_video

        return record_video(
            lambda: make_one(self.config.env, "rgb_array"), self.policy.begin, self.film, self.seeds(episodes)
        )

    def evaluate(self, episodes: int) -> tuple["Evaluation", Path]:
        """Play this many episodes and write the results into evaluation.json, or evaluation-sampled.json with sampled actions.

        Returns the results and the path of the file.
        """
        from lockstep.envs.catalog import make_one
        from lockstep.report.evaluate import EVALUATION, SAMPLED_EVALUATION, Evaluation, play_episodes

        env = make_one(self.config.env)
        try:
            results = list(play_episodes(env, self.policy.begin, self.seeds(episodes)))
        finally:
            env.close()
        evaluation = Evaluation([total for total, _ in results], [length for _, length in results])
        conditions = {
            "iteration": self.policy.iteration,
            "digest": self.policy.digest,
            "seed": self.seed,
            "actions": "drawn" if self._sample else "most probable",
        }
        path = self.place / (SAMPLED_EVALUATION if self._sample else EVALUATION)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_aside(path, f"{json.dumps({**conditions, **evaluation.summary()}, indent=2)}\n".encode())
        return evaluation, path

"""Policy of a run and the episodes that it plays, for `eval`, `play`, `plot` and `push`."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.start import import_env_module_of_run
from lockstep.files import write_atomically
from lockstep.processes.portable import is_portable, portable_problem, restart_portable
from lockstep.run.evaluations import Choice
from lockstep.run.folder import RunFolder

if TYPE_CHECKING:
    from lockstep.report.evaluate import Evaluation

__all__ = ["LoadedPolicy", "add_arguments", "add_checkpoint"]


def add_checkpoint(parser: "argparse._ActionsContainer") -> None:
    """Add the arguments that choose a checkpoint, as `iteration`."""
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument(
        "--iteration", type=whole_number(1), metavar="K", help="iteration of the checkpoint (default: the newest)"
    )
    choice.add_argument(
        "--best",
        dest="iteration",
        action="store_const",
        const="best",
        help="the checkpoint with the best evaluation during training; without evaluations, with the best training return",
    )


def add_arguments(parser: Arguments, episodes: int) -> None:
    """Add the arguments that `eval` and `play` share. `episodes` is the default number of episodes."""
    parser.add_argument(
        "run", metavar="RUN", help="run folder, its name in runs/, a checkpoint folder, or hub:USER/NAME[@REVISION]"
    )
    parser.add_argument(
        "--episodes",
        type=whole_number(1),
        default=episodes,
        metavar="N",
        help=f"number of episodes (default {episodes})",
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--sample", action="store_true", help="sample actions as in training, instead of the most probable ones"
    )
    parser.add_argument("--env.module", dest="module", metavar="M", help="module that registers the environment")
    parser.add_argument(
        "--seed", type=whole_number(0), metavar="S", help="seed of the episodes (default: that of the run)"
    )


class LoadedPolicy:
    """Loaded policy of a run, with the seeds of the episodes that it plays."""

    def __init__(
        self,
        run: str,
        iteration: Choice = None,
        sample: bool = False,
        seed: int | None = None,
        module: str | None = None,
        command: Sequence[str] = (),
    ) -> None:
        """Load the policy and set the number of threads.

        If the run has portable bits, `lockstep COMMAND` replaces this process, so that the episodes have the same bits on every processor that
        can give them; without `command`, it does not.

        `run` is what users give: a run folder, its name in `runs/`, a checkpoint folder, or `hub:USER/NAME[@REVISION]`. `seed` is
        that of the episodes, None: that of the run; `sample` and `iteration` as in `load_policy`. `module` is the value of
        `--env.module`. Raises ValueError if the run or the checkpoint does not exist.
        """
        from lockstep.experiment.execute import open_run
        from lockstep.experiment.policy import evaluation_seeds, load_policy
        from lockstep.hub.fetching import find_checkpoint
        from lockstep.hub.repository import PREFIX
        from lockstep.runtime.threads import limit_threads

        self._working_folder = Path.cwd()  # an environment may change it
        path, iteration = find_checkpoint(run, iteration)
        folder = RunFolder.open(path)
        folder.make_absolute()
        config = open_run(path)[1]
        if command and config.runtime.bits == "portable" and portable_problem() is None:
            restart_portable(command)
        import_env_module_of_run(config, module)
        self.config, self.policy = load_policy(folder, iteration, sample, seed)
        self.output_folder = (
            Path(*run.partition("@")[0].replace(PREFIX, "hub/").split("/")) if run.startswith(PREFIX) else path
        )
        """Folder for videos and evaluations: the run folder; for a run of the Hub, `hub/USER/NAME` in the current
        folder."""
        self.seed = self.config.run.seed if seed is None else seed
        self._sample = sample
        self._evaluation_seeds = evaluation_seeds
        limit_threads(self.config.runtime.threads)

    def seeds(self, count: int) -> list[int]:
        """Return the seeds of the first `count` evaluation episodes."""
        return self._evaluation_seeds(self.seed, count)

    @property
    def video_path(self) -> Path:
        """Path of the video that `record` writes."""
        return self.output_folder / "videos" / f"iteration-{self.policy.iteration:08d}.mp4"

    def record(self, episodes: int) -> list[tuple[float, int]]:
        """Record a video of this many episodes. Return the return and the length of each. Raises as `record_video` does."""
        path = self._working_folder / self.video_path
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        from lockstep.envs.catalog import make_one
        from lockstep.report.video import record_video

        return record_video(
            lambda: make_one(self.config.env, "rgb_array"), self.policy.begin, path, self.seeds(episodes)
        )

    def evaluate(self, episodes: int) -> "Evaluation":
        """Play this many episodes, and return the results."""
        from lockstep.envs.catalog import make_one
        from lockstep.report.evaluate import Evaluation, play_episodes

        env = make_one(self.config.env)
        try:
            results = list(play_episodes(env, self.policy.begin, self.seeds(episodes)))
        finally:
            env.close()
        return Evaluation([total for total, _ in results], [length for _, length in results])

    def store(self, evaluation: "Evaluation") -> Path:
        """Write the results to a file, and return its path."""
        from lockstep.report.evaluate import EVALUATION, SAMPLED_EVALUATION
        from lockstep.run.environment import processor_type

        conditions = {
            "iteration": self.policy.iteration,
            "digest": self.policy.digest,
            "seed": self.seed,
            "actions": "drawn" if self._sample else "most probable",
            "processor": processor_type(self.config.runtime.bits == "portable" and is_portable()),
        }
        path = self.output_folder / (SAMPLED_EVALUATION if self._sample else EVALUATION)
        written = self._working_folder / path
        written.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(written, f"{json.dumps({**conditions, **evaluation.summary()}, indent=2)}\n".encode())
        return path

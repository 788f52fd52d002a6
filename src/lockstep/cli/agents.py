"""A run's agent, made ready to act in a single environment: for `eval` and `play`."""

from collections.abc import Callable
from typing import Any

from numpy.typing import NDArray

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.locate import locate
from lockstep.config import Config
from lockstep.randomness import seed_of, stream
from lockstep.run.folder import RunFolder

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
    parser.add_argument("--seed", type=whole_number(0), metavar="S", help="of the episodes (default the run's)")


class Performer:
    """Agent, environment and seeds of a command line."""

    def __init__(self, run: str, iteration: int | None, sample: bool, seed: int | None) -> None:
        """Loads the agent. Raises ValueError in one line when there is no such run or checkpoint."""
        from lockstep.experiment import load_agent, pick_checkpoint
        from lockstep.runtime.threads import limit_threads

        self.folder = RunFolder.open(locate(run))
        self.iteration = pick_checkpoint(self.folder, iteration)
        self.config: Config
        self.config, self.agent = load_agent(self.folder, self.iteration)
        self.sample = sample
        self.seed = self.config.run.seed if seed is None else seed
        limit_threads(self.config.runtime.threads)

    def seeds(self, count: int) -> list[int]:
        """Seeds of episodes; their stream is another than that of training's episodes."""
        return [seed_of(self.seed, "evaluation", episode) for episode in range(count)]

    def flatten(self, observation_space: Any) -> Callable[[Any], NDArray[Any]]:
        """Turns an observation into its row `[O]`."""
        import numpy as np

        from lockstep.envs.layout import Layout

        layout = Layout(observation_space, self.agent.spaces)
        return lambda observation: np.asarray(layout.row(observation, {}))

    def act(self, action_space: Any) -> Callable[[NDArray[Any]], NDArray[Any]]:
        """Turns observations `[1, O]` into actions as the environment takes them."""
        from lockstep.envs.actions import action_converter

        convert = action_converter(action_space)
        generator = stream(self.seed, "evaluation-actions")
        if self.sample:
            return lambda observations: convert(self.agent.sample(observations, generator))
        return lambda observations: convert(self.agent.mode(observations))

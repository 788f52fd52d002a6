"""A run's agent, made ready to act in a single environment: for `eval` and `play`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.locate import locate
from lockstep.cli.start import import_again
from lockstep.config import Config
from lockstep.randomness import seed_of, stream
from lockstep.run.folder import RunFolder

if TYPE_CHECKING:
    import gymnasium as gym

    from lockstep.report.evaluate import Begin

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
    """Agent, environment and seeds of a command line."""

    def __init__(self, run: str, iteration: int | None, sample: bool, seed: int | None, module: str | None) -> None:
        """Loads the agent. Raises ValueError in one line when there is no such run or checkpoint."""
        from lockstep.experiment import load_agent, open_run, pick_checkpoint
        from lockstep.runtime.threads import limit_threads

        self.folder = RunFolder.open(locate(run))
        import_again(open_run(self.folder.path)[1], module)
        self.iteration = pick_checkpoint(self.folder, iteration)
        self.config: Config
        self.config, self.agent = load_agent(self.folder, self.iteration)
        self.sample = sample
        self.seed = self.config.run.seed if seed is None else seed
        limit_threads(self.config.runtime.threads)

    def seeds(self, count: int) -> list[int]:
        """Seeds of episodes; their stream is another than that of training's episodes."""
        return [seed_of(self.seed, "evaluation", episode) for episode in range(count)]

    def control(self, env: "gym.Env[Any, Any]") -> "Begin":
        """The agent at the controls of `env`, or of one like it."""
        from lockstep.agent import Pilot
        from lockstep.envs.actions import action_converter, each_action
        from lockstep.envs.layout import Layout

        layout, convert = Layout(env.observation_space, self.agent.spaces), action_converter(env.action_space)
        pilot = Pilot(self.agent, generator=stream(self.seed, "evaluation-actions") if self.sample else None)

        def act(observation: Any, info: dict[str, Any]) -> Any:
            row, pixels = layout.row(observation, info), layout.pixels(observation)
            return each_action(convert(pilot.act(row[None], pixels[None])))[0]

        def begin() -> Callable[[Any, dict[str, Any]], Any]:
            pilot.begin()
            return act

        return begin

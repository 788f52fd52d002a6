"""Evaluation of a checkpoint during training."""

from contextlib import ExitStack, closing

from lockstep.algorithm.agent import Agent
from lockstep.config import Config
from lockstep.envs.catalog import make_one
from lockstep.experiment.execute import load_agent
from lockstep.experiment.policy import TrainedPolicy
from lockstep.randomness import seed_of, stream
from lockstep.report.evaluate import Evaluation, play_together
from lockstep.run.checkpoint import Checkpoint, SavedCounters
from lockstep.run.folder import RunFolder

__all__ = ["evaluate_checkpoint"]

_SEEDS, _ACTIONS = "training-evaluation", "training-evaluation-actions"
"""Names of the random streams. They differ from those of `lockstep eval`, so that it measures the best checkpoint on
episodes by which that checkpoint was not chosen.
"""

_MAX_ENVS = 10
"""Largest number of environments that exist, and of episodes that are played, at the same time."""


def evaluate_checkpoint(folder: RunFolder, iteration: int, episodes: int) -> dict[str, object]:
    """Play episodes with the agent of a checkpoint, with the most probable actions and with sampled ones. Return a row of evaluations.jsonl.

    Every checkpoint plays `episodes` of each kind with the same seeds, so that the results depend only on its weights and the config. The
    module of the environment must be imported already. Raises ValueError if the checkpoint does not exist, is broken or does not fit.
    """
    config, agent = load_agent(folder, iteration)
    counters = SavedCounters.of(Checkpoint(folder.checkpoint(iteration)).state)
    row: dict[str, object] = {
        "iteration": iteration,
        "env_steps": counters.env_steps,
        "seconds": counters.seconds,
        "digest": agent.digest(),
        "episodes": episodes,
    }
    for prefix, sample in (("", False), ("sampled_", True)):
        result = _evaluate(config, agent, episodes, sample)
        row |= {
            f"{prefix}return_mean": result.return_mean,
            f"{prefix}return_std": result.return_std,
            f"{prefix}return_min": min(result.returns),
            f"{prefix}return_max": max(result.returns),
            f"{prefix}length_mean": result.length_mean,
        }
    return row


def _evaluate(config: Config, agent: Agent, episodes: int, sample: bool) -> Evaluation:
    results, generator = [], stream(config.run.seed, _ACTIONS)
    seeds = [seed_of(config.run.seed, _SEEDS, episode) for episode in range(episodes)]
    for first in range(0, episodes, _MAX_ENVS):
        group = seeds[first : first + _MAX_ENVS]
        with ExitStack() as stack:
            # new environments each time: the episodes of some depend on earlier ones (BipedalWalker)
            envs = [stack.enter_context(closing(make_one(config.env))) for _ in group]
            policy = TrainedPolicy(agent, envs[0].observation_space, envs[0].action_space, generator, sample)
            results += play_together(envs, policy.begin_together(len(group)), group)
    return Evaluation([total for total, _ in results], [length for _, length in results])

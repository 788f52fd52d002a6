"""Evaluation of a checkpoint during training."""

from lockstep.algorithm.agent import Agent
from lockstep.config import Config
from lockstep.envs.catalog import make_one
from lockstep.experiment.execute import load_agent
from lockstep.experiment.policy import TrainedPolicy
from lockstep.randomness import seed_of, stream
from lockstep.report.evaluate import Evaluation, play_episodes
from lockstep.run.checkpoint import Checkpoint, SavedCounters
from lockstep.run.folder import RunFolder

__all__ = ["evaluate_checkpoint"]

_SEEDS, _ACTIONS = "training-evaluation", "training-evaluation-actions"
"""Names of the random streams. They differ from those of `lockstep eval`, so that it measures the best checkpoint on
episodes by which that checkpoint was not chosen.
"""


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
    seed = config.run.seed
    # a new environment each time: the episodes of some depend on earlier ones (BipedalWalker)
    env = make_one(config.env)
    try:
        spaces = env.observation_space, env.action_space
        policy = TrainedPolicy(agent, *spaces, stream(seed, _ACTIONS), sample)
        seeds = [seed_of(seed, _SEEDS, episode) for episode in range(episodes)]
        results = list(play_episodes(env, policy.begin, seeds))
    finally:
        env.close()
    return Evaluation([total for total, _ in results], [length for _, length in results])

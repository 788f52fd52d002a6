"""`lockstep eval`: measure a run's agent on new episodes."""

from collections.abc import Sequence

from lockstep.cli.agents import LoadedPolicy, add_arguments
from lockstep.cli.arguments import Arguments
from lockstep.messages import counted

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Play episodes, print their statistics, and write them into the run folder. Return the exit code."""
    parser = Arguments(
        "eval",
        "Evaluates the agent of a run on new episodes. Writes evaluation.json, or evaluation-sampled.json with --sample.",
    )
    add_arguments(parser, episodes=20)
    args = parser.read(argv)
    loaded = LoadedPolicy(args.run, args.iteration, args.sample, args.seed, args.module, ("eval", *argv))
    evaluation = loaded.evaluate(args.episodes)
    print(f"{counted(args.episodes, 'episode')} of {loaded.config.env.id}, iteration {loaded.policy.iteration}")
    print(evaluation.lines(), flush=True)
    print(f"written {loaded.store(evaluation)}")
    return 0

"""`lockstep eval`: how good a run's agent is."""

from collections.abc import Sequence

from lockstep.cli.agents import Performer, add_arguments
from lockstep.cli.arguments import Arguments

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Prints return and length over some episodes, and writes them into the run's folder."""
    parser = Arguments(
        "eval",
        "Plays episodes that training never saw and measures them. Writes evaluation.json, or evaluation-sampled.json with --sample.",
    )
    add_arguments(parser, episodes=20)
    own = parser.read(argv)
    performer = Performer(own.run, own.iteration, own.sample, own.seed, own.module)
    evaluation, path = performer.evaluate(own.episodes)
    print(
        f"{own.episodes} episode{'s' * (own.episodes > 1)} of {performer.config.env.id}, iteration {performer.policy.iteration}"
    )
    print(f"{evaluation.lines()}\nwritten {path}")
    return 0

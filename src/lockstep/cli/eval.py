"""`lockstep eval`: how good a run's agent is."""

import json
from collections.abc import Sequence

from lockstep.cli.agents import Performer, add_arguments
from lockstep.cli.arguments import Arguments

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Prints return and length over some episodes, and leaves them in the run's evaluation.json."""
    parser = Arguments("eval", "Plays episodes that training never saw and measures them. Leaves evaluation.json.")
    add_arguments(parser, episodes=20)
    own = parser.read(argv)
    performer = Performer(own.run, own.iteration, own.sample, own.seed, own.module)

    from lockstep.envs.catalog import make_one
    from lockstep.report.evaluate import Evaluation, play_episodes
    from lockstep.run.folder import write_aside

    env = make_one(performer.config.env)
    try:
        results = list(play_episodes(env, performer.policy.begin, performer.seeds(own.episodes)))
    finally:
        env.close()
    evaluation = Evaluation([total for total, _ in results], [length for _, length in results])
    conditions = {
        "iteration": performer.policy.iteration,
        "digest": performer.policy.digest,
        "seed": performer.seed,
        "actions": "drawn" if own.sample else "most probable",
    }
    path = performer.folder.path / "evaluation.json"
    write_aside(path, f"{json.dumps({**conditions, **evaluation.summary()}, indent=2)}\n".encode())
    print(
        f"{own.episodes} episode{'s' * (own.episodes > 1)} of {performer.config.env.id}, iteration {performer.policy.iteration}"
    )
    print(f"{evaluation.lines()}\nwritten {path}")
    return 0

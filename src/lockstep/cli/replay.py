"""`lockstep replay`: run a gradient step that was not finite again."""

from collections.abc import Sequence
from pathlib import Path

from lockstep.cli.arguments import Arguments
from lockstep.cli.start import import_env_module_of_run
from lockstep.processes.exit_codes import DONE, FAILED

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Run the step of a dump, and print the first non-finite value. Return the exit code: 1 if all are finite."""
    parser = Arguments(
        "replay",
        "Runs a gradient step that was not finite again, operation by operation on the CPU, and prints the first non-finite value. "
        "A run writes the file when its first such step ends it or, with ppo.on_non_finite=skip, is left out. The exit code is 1 if all "
        "numbers are finite.",
    )
    parser.add_argument("dump", type=Path, metavar="DUMP", help="file non-finite-….safetensors in a run folder")
    parser.add_argument("--env.module", dest="module", metavar="M", help="module that registers the environment")
    args = parser.read(argv)

    from lockstep.experiment.dump import read_dump
    from lockstep.experiment.replay import replay

    dump = read_dump(args.dump)
    import_env_module_of_run(dump.config, args.module)
    step = dump.step
    print(
        f"{dump.config.env.id}, iteration {step.iteration}, epoch {step.epoch + 1}, minibatch {step.minibatch + 1}: "
        f"{len(step.microbatch.rows)} rows of {len(step.places[:, 0].unique())} environments"
    )
    try:
        finding = replay(dump)
    except ValueError as error:
        raise ValueError(f"{args.dump}: {error}") from None
    if finding is None:
        print("not reproduced: all numbers are finite, operation by operation on this machine")
        return FAILED
    print(f"reproduced: {finding}")
    return DONE

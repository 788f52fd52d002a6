"""`lockstep evaluator FOLDER [MODULE …]`: the sidecar process of rank 0 that evaluates its checkpoints.

An internal command.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from lockstep.processes.parent import die_with_parent
from lockstep.telemetry.sidecar import SidecarContext

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Evaluate one checkpoint after the other, until training has ended and none is pending. Return the exit code."""
    context = SidecarContext()
    die_with_parent(int(os.environ["LOCKSTEP_PARENT"]))
    from lockstep.envs.functions import import_reference
    from lockstep.experiment.execute import open_run
    from lockstep.experiment.resolve import iterations
    from lockstep.run.evaluations import Evaluations

    folder, config = open_run(Path(argv[0]))
    assert config.run.evaluate_every is not None
    for module in argv[1:]:
        import_reference(module)
    evaluations = Evaluations(folder, config.run.evaluate_every, iterations(config))

    def evaluate(iteration: int) -> None:
        from lockstep.report.training_evaluation import evaluate_checkpoint
        from lockstep.runtime.threads import limit_threads

        limit_threads(1)
        evaluations.append(evaluate_checkpoint(folder, iteration, config.run.evaluate_episodes))

    context.process_all(evaluations.pending, evaluate)
    return 0

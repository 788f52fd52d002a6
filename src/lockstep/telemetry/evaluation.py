"""Evaluation during training: a sidecar process (`cli/evaluator.py`) evaluates checkpoints, one after the other.

The sidecar uses only CPU time that no other process needs, so it may fall behind. Checkpoints that wait for evaluation
are not removed, and after the last iteration rank 0 waits for the remaining evaluations. If a run is stopped, the
remaining checkpoints are evaluated when the run is resumed.
"""

from collections.abc import Callable, Mapping, Sequence

from lockstep.run.checkpoint_writer import remove_old_checkpoints
from lockstep.run.evaluations import EVALUATIONS, Evaluations
from lockstep.run.folder import RunFolder
from lockstep.run.settings import RunConfig
from lockstep.telemetry.sidecar import Sidecar, SidecarFailed
from lockstep.telemetry.tail import MetricsTail

__all__ = ["EvaluationSidecar"]


class EvaluationSidecar(Sidecar):
    """Sidecar that evaluates checkpoints."""

    def __init__(
        self,
        folder: RunFolder,
        config: RunConfig,
        iterations: int,
        modules: Sequence[str],
        timeout: Callable[[], float],
        report: Callable[[Mapping[str, object]], None],
    ) -> None:
        """Start the sidecar of the run in `folder`; `config` is the section `run`, with `evaluate_every`.

        The sidecar imports `modules` to find the environment and the policy. `timeout` is as in `Sidecar`. `report` is
        called with every new row of evaluations.jsonl.
        """
        assert config.evaluate_every is not None
        self.evaluations = Evaluations(folder, config.evaluate_every, iterations)
        self._run_folder = folder
        self._keep = config.keep
        self._report = report
        self._tail = MetricsTail(folder.path / EVALUATIONS)
        self._tail.read()  # rows of earlier attempts have been reported
        super().__init__("evaluation", folder.path, ["evaluator", str(folder.path), *modules], timeout)

    def _report_progress(self) -> None:
        super()._report_progress()
        for row in self._tail.read()[0]:
            self._report(row)

    def close(self) -> None:
        """Wait for the sidecar as `Sidecar.close` does. The message of SidecarFailed lists iterations not evaluated."""
        complete = self._timeout() > 0
        if complete and self.evaluations.pending():
            self._restart()
        try:
            super().close()
        except SidecarFailed as error:
            missing = ", ".join(map(str, self.evaluations.pending()))
            raise SidecarFailed(f"{error}; not evaluated: iterations {missing}" if missing else str(error)) from None
        finally:
            if complete:
                remove_old_checkpoints(self._run_folder, self._keep)

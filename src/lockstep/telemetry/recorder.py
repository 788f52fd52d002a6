"""Telemetry of a run: all loggers of rank 0 behind one interface."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from time import perf_counter

from lockstep.algorithm.agent import Agent
from lockstep.run.run import TrainingRun
from lockstep.run.settings import RunConfig
from lockstep.telemetry.evaluation import EvaluationSidecar
from lockstep.telemetry.loggers import JsonLines, Logger, OptionalLogger, TensorBoard
from lockstep.telemetry.progress import display
from lockstep.telemetry.sidecar import Sidecar
from lockstep.telemetry.storing import StoreSidecar
from lockstep.telemetry.trackers import TRACKERS
from lockstep.telemetry.videos import VideoSidecar

__all__ = ["Recorder"]

_END_TIMEOUT = 60.0
"""Seconds that trackers and videos have together after the last iteration."""
_EVALUATION_TIMEOUT = 3600.0
"""Seconds that the remaining evaluations have after the last iteration."""
_STOP_TIMEOUT = 5.0
"""Seconds that a tracker has when the run ends before its last iteration."""
_NICE = 5
"""Niceness of trackers. They need seconds of CPU time to start, which they must also get on a busy machine."""


class Recorder:
    """Telemetry of rank 0: `metrics.jsonl`, the progress display, and the loggers in `run.loggers`."""

    def __init__(self, run: TrainingRun, config: RunConfig, modules: Sequence[str]) -> None:
        """Open all loggers.

        The sidecar processes that record videos and evaluate import `modules`, to find environments and policies.
        """
        self._run = run
        self._config = config
        self._modules = modules
        self._closing_since = 0.0
        self._videos: OptionalLogger[VideoSidecar] | None = None
        self._metrics = JsonLines(run.folder.path / "metrics.jsonl")
        self._loggers: list[Logger] = [self._metrics]
        self._evaluation: OptionalLogger[EvaluationSidecar] | None = None
        if config.evaluate_every is not None:
            self._evaluation = OptionalLogger("evaluation", self._evaluate)
            self._loggers.append(self._evaluation)  # closed before all loggers that receive its results
        self._loggers += display(config, run.folder, run.last, run.counters.solved_at is not None)
        self._loggers += self._optional()
        if config.store is not None:  # closed last, so that it copies what the others have written
            self._loggers.append(StoreSidecar(run.folder, config.store, lambda: run.done >= run.last))

    def _optional(self) -> Iterator[Logger]:
        """Yield the loggers that training can continue without. Trackers come last, because they also upload videos."""
        run, chosen = self._run, self._config.loggers
        path = run.folder.path
        if "tensorboard" in chosen:
            yield OptionalLogger(
                "TensorBoard", lambda: TensorBoard(path / "tb", run.counters.env_steps + 1, run.folder.tree())
            )
        if self._config.capture_video:
            self._videos = OptionalLogger(
                "videos", lambda: VideoSidecar(run.folder, self._modules, lambda: self._seconds_left(0.0))
            )
            yield self._videos
        for name in dict.fromkeys(chosen):
            if name in TRACKERS:
                arguments = ("track", str(path), name)
                timeout = partial(self._seconds_left, _STOP_TIMEOUT)
                yield OptionalLogger(name, partial(Sidecar, name, path, arguments, timeout, _NICE))

    def _evaluate(self) -> EvaluationSidecar:
        return EvaluationSidecar(
            self._run.folder,
            self._config,
            self._run.last,
            self._modules,
            lambda: _EVALUATION_TIMEOUT if self._run.done >= self._run.last else 0.0,
            self._write_evaluation,
        )

    def _write_evaluation(self, row: Mapping[str, object]) -> None:
        for logger in self._loggers:
            logger.write_evaluation(row)

    def _seconds_left(self, stopped: float) -> float:
        """Return the seconds that a sidecar process may still run.

        `stopped` is the number of seconds for a run that ends before its last iteration.
        """
        if self._run.done < self._run.last:
            return stopped
        self._closing_since = self._closing_since or perf_counter()
        return max(self._closing_since + _END_TIMEOUT - perf_counter(), _STOP_TIMEOUT)

    def write(self, metrics: Mapping[str, object]) -> None:
        """See `Telemetry.write`."""
        for logger in self._loggers:
            logger.write(metrics)

    def flush(self) -> None:
        """See `Telemetry.flush`."""
        for logger in self._loggers:
            logger.flush()

    def flush_metrics(self) -> None:
        """See `Telemetry.flush_metrics`."""
        self._metrics.write_out()

    def sync(self) -> None:
        """See `Telemetry.sync`."""
        self._metrics.sync()

    def capture(self, iteration: int, agent: Agent) -> None:
        """See `Telemetry.capture`."""
        if self._videos is not None:
            self._videos.do(lambda videos: videos.enqueue(iteration, agent))

    def pending_evaluations(self) -> Collection[int]:
        """See `Telemetry.pending_evaluations`. After the sidecar has failed, nothing waits for it."""
        pending: list[int] = []
        if self._evaluation is not None:
            self._evaluation.do(lambda sidecar: pending.extend(sidecar.evaluations.pending()))
        return pending

    def close(self) -> None:
        """See `Telemetry.close`. Raises StoreFailed as `StoreSidecar.close` does."""
        with ExitStack() as stack:  # all of them, whatever fails
            for logger in reversed(self._loggers):
                stack.callback(logger.close)

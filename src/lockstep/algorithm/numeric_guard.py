"""Rejection of gradient steps that are not finite: `ppo.on_non_finite`. All ranks decide alike, from the reduced totals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Batch, Microbatch, Minibatch
from lockstep.algorithm.locate_non_finite import Finding, trace_microbatch, trace_total
from lockstep.algorithm.loss import TrainMask
from lockstep.algorithm.non_finite import NonFinite, locate_non_finite
from lockstep.algorithm.options import UpdateOptions
from lockstep.group.group import Group
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import Rollout

__all__ = ["GradientStep", "NumericGuard", "StepSaver"]

_LIMIT = 3
"""Iterations in a row without a finite gradient step that end a run."""
_TEXT = 400
"""Bytes of a message that ranks gather."""


@dataclass(frozen=True)
class GradientStep:
    """Inputs of one gradient step, restricted to the rows of one shard."""

    iteration: int
    epoch: int
    minibatch: int
    """Indices of epoch and minibatch, counted from 0."""
    trained: TrainMask
    samples: float
    """The number of valid rows of the minibatch."""
    scalars: Tensor
    """LOSS_SCALARS, `[5]`."""
    microbatch: Microbatch
    places: Tensor
    """`[K, 2]`: environment and step, counted from 1, of every row of the microbatch."""
    total: Tensor | None = None
    """`[P + 5 + n]`: the sums over all microbatches, if they were computed."""

    def trace(self, agent: Agent, config: PPOConfig) -> Finding | None:
        """Run the step with the agent's weights. Return the first non-finite value in the microbatch, or else in the total."""
        finding = trace_microbatch(agent, config, self.microbatch, self.scalars, self.trained)
        return trace_total(agent, self.total) if finding is None and self.total is not None else finding

    def describe(self, finding: Finding) -> str:
        """Describe in one line what is not finite, where, and in which step."""
        where = ""
        if finding.row is not None:
            environment, step = self.places[finding.row].tolist()
            where = f" in row {finding.row}, which is step {step} of environment {environment},"
        return f"{finding.text}{where} in epoch {self.epoch + 1}, minibatch {self.minibatch + 1} of iteration {self.iteration}"


class StepSaver(Protocol):
    """Destination of gradient steps that are not finite."""

    def save(self, step: GradientStep, agent: Agent) -> None:
        """Write a step. Raises OSError."""

    def replay_command(self, iteration: int) -> str:
        """Return the command that runs the step of an iteration again."""

    def warn(self, line: str) -> None:
        """Print a warning. Called on rank 0."""


class NumericGuard:
    """Rejects gradient steps that are not finite: ends the run, or leaves them out."""

    def __init__(
        self, agent: Agent, config: PPOConfig, group: Group, shards: Sequence[int], options: UpdateOptions
    ) -> None:
        """Arguments as in `Update`."""
        self.saver: StepSaver | None = None
        """Destination of the first step that is not finite."""
        self.skips = config.on_non_finite == "skip"
        self.skipped_iterations = 0
        """Number of iterations in a row, up to the last one, in which all gradient steps were left out."""
        self._agent = agent
        self._config = config
        self._group = group
        self._shards = shards
        self._options = options
        self._rollouts: Sequence[Rollout] = ()
        self._iteration = 0
        self._skipped = 0
        self._reported = False

    def begin(self, rollouts: Sequence[Rollout], iteration: int) -> None:
        """Begin the update of an iteration, with the rollouts of this rank's shards."""
        self._rollouts, self._iteration, self._skipped = rollouts, iteration, 0

    def is_finite(self, total: Tensor, means: Sequence[float], norm: float) -> bool:
        """Return False if a step would make the weights non-finite. `total` are the sums of the step, `means` and `norm` those of `Adam.propose`."""
        if not math.isfinite(norm + sum(means)) or self._agent.trained_buffers.is_nan:
            return False
        slice_ = self._agent.flat.slices.get("curiosity")  # the norm does not include this group
        if slice_ is None:
            return True
        unclipped = total[slice_]
        return math.isfinite(torch.dot(unclipped, unclipped))  # one operation instead of three

    def reject(
        self,
        batch: Batch,
        minibatch: Minibatch,
        scalars: Tensor,
        trained: TrainMask,
        total: Tensor | None,
        problem: str,
        *,
        dumped: bool = True,
    ) -> None:
        """Leave out a step that is not finite: count it, and report the first one. Raises NonFinite on all ranks if the run is to end instead.

        `problem` is the message if no non-finite value is found. With `dumped` False no dump is written, because `lockstep replay` could not
        find one either.
        """
        self._skipped += 1
        if self.skips and self._reported:
            return
        places = self._places(batch, minibatch)
        fixed = self._iteration, minibatch.epoch, minibatch.number, trained, minibatch.samples, scalars
        steps = [
            GradientStep(*fixed, microbatch, place, total)
            for microbatch, place in zip(minibatch.microbatches, places, strict=True)
        ]
        line = self._report(steps, problem) if dumped else problem
        if not self.skips:
            raise NonFinite(line)
        self._reported = True
        if self._group.rank == 0 and self.saver is not None:
            self.saver.warn(f"a gradient step was left out: {line}")

    def fail(self, problem: str) -> None:
        """Raise NonFinite on all ranks for values in the rollouts that no gradient step shows."""
        raise NonFinite(self._cause() or problem)

    def end(self, taken: float) -> dict[str, float]:
        """End the update after `taken` gradient steps. Return the metric of those that were left out.

        Raises NonFinite on all ranks after three consecutive iterations without a finite gradient step.
        """
        if not self.skips:
            return {}
        self.skipped_iterations = 0 if taken or not self._skipped else self.skipped_iterations + 1
        if self.skipped_iterations >= _LIMIT:
            cause = self._cause() or "lower ppo.learning_rate"
            raise NonFinite(f"no gradient step was finite in {self.skipped_iterations} iterations in a row: {cause}")
        return {"skipped_steps": float(self._skipped)}

    def _cause(self) -> str | None:
        return locate_non_finite(self._rollouts, self._shards, self._iteration, self._group, self._options.fused)

    def _report(self, steps: Sequence[GradientStep], problem: str) -> str:
        """Describe a step in one line, the same on all ranks, and save the microbatch that is not finite. `steps` has one per microbatch of this rank."""
        findings = [step.trace(self._agent, self._config) for step in steps]
        line = self._cause()
        origins, texts = torch.zeros(len(steps), 2), torch.zeros(len(steps), _TEXT, dtype=torch.uint8)
        for row, (step, finding) in enumerate(zip(steps, findings, strict=True)):
            origins[row, 0], origins[row, 1] = self._group.rank, math.inf if finding is None else finding.origin
            encoded = b"" if finding is None else step.describe(finding).encode()[:_TEXT]
            texts[row, : len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        owners, kinds = self._group.gather(origins, "non-finite").unbind(1)
        first = int(kinds.argmin())
        text = bytes(self._group.gather(texts, "non-finite")[first].tolist()).rstrip(b"\0").decode(errors="replace")
        mine = first - int((owners < self._group.rank).sum())
        saved = self._save(steps[mine] if owners[first] == self._group.rank else None, len(steps))
        line = line or (f"{text}: lower ppo.learning_rate or check the rewards" if text else problem)
        return f"{line}; {saved}" if saved else line

    def _save(self, step: GradientStep | None, microbatches: int) -> str:
        """Save the step on the rank that has it. Return the command that runs it again; empty if it was not saved. All ranks call it."""
        written = False
        if step is not None and self.saver is not None:
            try:
                self.saver.save(step, self._agent)
                written = True
            except OSError:
                pass  # the message without the file is what the user needs most
        outcomes = self._group.gather(torch.full((microbatches, 1), float(written)), "non-finite")
        if self.saver is None or not bool(outcomes.any()):
            return ""
        return f"`{self.saver.replay_command(self._iteration)}` runs that gradient step again"

    def _places(self, batch: Batch, minibatch: Minibatch) -> list[Tensor]:
        """Return environment and step, counted from 1, of the rows of every microbatch, `[K, 2]`."""
        steps, count = self._rollouts[0].rewards.shape
        shards = torch.tensor(list(self._shards))
        places = []
        for microbatch in batch.order[:, minibatch.epoch, minibatch.number].flatten(1).cpu():
            shard, row = microbatch // (steps * count), microbatch % (steps * count)
            shard = shard if self._options.share_data else shards[shard]
            places.append(torch.stack([shard * count + row % count, row // count + 1], 1))
        return places

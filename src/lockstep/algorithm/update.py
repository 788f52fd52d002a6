"""One PPO update, for every plan: prepare minibatches, then compute a gradient and take a step for each.

Each shard contributes sums, the group adds them in shard order, and every decision is made from the total. So the update gives the
same bits whichever ranks hold the shards.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Batch, Microbatch, Minibatch
from lockstep.algorithm.gradient import OrderedGradient, Replicate, ReplicatedGradient
from lockstep.algorithm.kl_control import KLController
from lockstep.algorithm.loss import TrainMask
from lockstep.algorithm.numeric_guard import NumericGuard
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.overlapped_gradient import make_ordered_gradient
from lockstep.algorithm.prepare import Preparation, group_rows
from lockstep.compiling.kernels import MakeKernel, eager
from lockstep.group.group import Group
from lockstep.models.state import check_state
from lockstep.ppo.adam import Adam
from lockstep.ppo.schedules import Schedule
from lockstep.ppo.settings import PPOConfig
from lockstep.ppo.statistics import KL, STATISTICS, MeanAccumulator
from lockstep.processes.heartbeat import beat
from lockstep.rollout import Rollout

__all__ = ["Update"]

_WRONG_STATISTICS = "an observation or a reward is not finite: check the environment"
_WRONG_SAMPLES = (
    "an observation, a reward or a value estimate is not finite: check the environment, or lower ppo.learning_rate"
)
_OVERFLOW = "the gradient is finite, but the step makes weights infinite: lower ppo.learning_rate"
"""Messages for the case that the non-finite value can't be located."""


class ScheduledValues(NamedTuple):
    """The values of all schedules for one update: learning rates of policy, critic and curiosity networks, and coefficients."""

    policy: float
    value: float
    curiosity: float
    clip: float
    entropy: float


class Update:
    """Trains an agent on rollouts. Holds the state that is kept between updates."""

    def __init__(
        self,
        agent: Agent,
        config: PPOConfig,
        group: Group,
        shards: Sequence[int],
        seed: int,
        options: UpdateOptions = UpdateOptions(),  # noqa: B008
        *,
        replicate: Replicate | None = None,
        make_kernel: MakeKernel = eager,
    ) -> None:
        """Create the update of `agent` on the `shards` of one rank, ascending, with the settings `config` and `options`.

        `seed` is that of the experiment; the order of samples is drawn from it. `group` is the group of the trainers.
        Each rank of `group` contributes as many rows to a sum as it has shards or, if they are fused, one. `replicate` wraps the policy for
        `plan.gradients: ddp`; None: gradients are added in shard order. `make_kernel` makes the kernels of the gradient and of the optimizer's step.
        """
        self.agent = agent
        self.fused = options.fused
        self.kl = KLController(config)
        self.guard = NumericGuard(agent, config, group, shards, options)
        self._config = config
        self._group = group
        self._shards = shards
        self._prepare = Preparation(agent, config, group, shards, seed, options)
        self._gradient = (
            make_ordered_gradient(agent, config, group, make_kernel, options.minibatch_rows)
            if replicate is None
            else ReplicatedGradient(agent, config, group, replicate)
        )
        self.adam = self._optimizer(make_kernel if shards else eager)
        curiosity_rate = None if agent.curiosity is None else agent.curiosity.config.learning_rate
        settings = (config.learning_rate, config.value_learning_rate, curiosity_rate, config.clip, config.entropy)
        self._schedules = [Schedule.parse(config.learning_rate if value is None else value) for value in settings]

    def _optimizer(self, make_kernel: MakeKernel) -> Adam:
        """Create the optimizer. The curiosity networks are a separate parameter group, outside the norm that is clipped."""
        agent, config = self.agent, self._config
        groups = {name: group.stop - group.start for name, group in agent.flat.slices.items()}
        curiosity = {name: size for name, size in groups.items() if name == "curiosity"}
        if not (config.separate or config.separate_grad_norms):
            groups = {"all": sum(groups.values()) - sum(curiosity.values()), **curiosity}
        others = len(STATISTICS) + len(self._curiosity_losses)
        limits = config.adam_epsilon, config.max_grad_norm
        separately = config.separate_grad_norms
        return Adam(agent.flat.buffer, groups, *limits, others, make_kernel, len(curiosity), separately)

    @property
    def _curiosity_losses(self) -> tuple[str, ...]:
        return () if self.agent.curiosity is None else self.agent.curiosity.losses

    def make_kernels(self, samples: int, length: int) -> None:
        """Make all kernels that this rank may use, before training starts. `samples` is the number of samples per shard and iteration,
        `length` that of a sequence.

        Kernels with images on a GPU are made when they are first used.
        """
        agent, config = self.agent, self._config
        made = self._shards and agent.supports_kernels and (agent.policy.is_mlp or agent.device.type == "cpu")
        if not (made and isinstance(self._gradient, OrderedGradient)):
            return
        rows = (samples // config.minibatch_count) * (len(self._shards) if self.fused else 1)
        policy, value, stops = config.epochs_of_policy, config.epochs_of_value, config.kl_stop is not None
        masks: list[TrainMask] = [(True, True)]
        masks += [(True, False)] * (policy > value)
        masks += [(False, True)] * (policy < value or (stops and config.separate))
        for trained in masks:
            example = Microbatch(torch.zeros(rows, agent.layout.width, dtype=agent.dtype, device=agent.device))
            if agent.spaces.images:
                pixels = torch.zeros(rows, agent.spaces.pixel_count, dtype=torch.uint8, device=agent.device)
                following = pixels if agent.curiosity is not None and agent.curiosity.sees_images else None
                example = example._replace(pixels=pixels, next_pixels=following)
            if agent.state_size:
                example = example._replace(states=example.rows.new_zeros(rows // length, agent.state_size))
            self._gradient.make_kernels(example, trained)

    def kernel_digest(self) -> str:
        """Return a digest of what the kernels of the gradient compute from fixed numbers; empty without kernels.

        It is the same on all ranks that train, unless the kernels are fused: then their shapes depend on the rank.
        """
        if self.fused or not isinstance(self._gradient, OrderedGradient):
            return ""
        results = b"".join(result.numpy().tobytes() for result in self._gradient.kernel_results())
        return hashlib.sha256(results).hexdigest() if results else ""

    def __call__(self, rollouts: Sequence[Rollout], iteration: int, progress: float) -> dict[str, float]:
        """Train all epochs on the rollouts of this rank's shards, ascending. `progress` is the fraction of the run that is done, in [0, 1].

        Returns the metrics of the update, equal on every rank that trains; {} without rollouts. Raises NonFinite on every rank that trains,
        with the weights of the last finite step, as `ppo.on_non_finite` says.
        """
        if not rollouts:
            return {}
        self.guard.begin(rollouts, iteration)
        observed, finite = self._merge_statistics(rollouts)
        if self._prepare.intrinsic is not None:
            self._prepare.intrinsic.observe(rollouts)
            assert self.agent.curiosity is not None
            if iteration <= self.agent.curiosity.config.warmup:
                self._merge_observations(observed)
                if not finite and not self.guard.skips:
                    self.guard.fail(_WRONG_STATISTICS)
                return {"warmup": 1.0}
        batch = self._prepare(rollouts, iteration, progress)
        rates = self._rates(progress)
        if not self.guard.skips:
            self._check_batch(batch, rates)
        metrics = batch.metrics | self._train(batch, rates)
        if not finite and not self.guard.skips:
            self.guard.fail(_WRONG_STATISTICS)
        # at the end: without a lag, collecting and training normalize observations by the same statistics
        self._merge_observations(observed)
        if "last_kl" in metrics:
            self.kl.adapt(metrics["last_kl"], progress)
        metrics |= {"learning_rate": rates.policy, "clip": rates.clip, "entropy_coefficient": rates.entropy}
        return {name: value for name, value in metrics.items() if math.isfinite(value)} if self.guard.skips else metrics

    def _check_batch(self, batch: Batch, rates: ScheduledValues) -> None:
        """Raise NonFinite on all ranks, before any step, if the samples of a minibatch are not finite."""
        wrong = (~batch.advantage_statistics[0].isfinite()).any(1).nonzero().flatten()
        if len(wrong):
            steps = self._minibatches(batch, rates)
            minibatch, scalars = next(islice(steps, int(wrong[0]), None))
            self.guard.reject(batch, minibatch, scalars, (True, True), None, _WRONG_SAMPLES)

    def _merge_statistics(self, rollouts: Sequence[Rollout]) -> tuple[tuple[Tensor, Tensor] | None, bool]:
        """Reduce the statistics of observations and returns, and merge those of returns, which scale this iteration's rewards.

        Returns the sums of the observations and the means that were subtracted before summing, the same in all shards; and whether all sums
        are finite: non-finite sums are not merged.
        """
        if not rollouts[0].statistics_sums.numel():
            return None, True
        sums = torch.stack([rollout.statistics_sums for rollout in rollouts])
        total, means = self._group.reduce(group_rows(sums, self.fused), "statistics"), rollouts[0].means
        finite = bool(total.isfinite().all())
        if self.agent.return_statistics is not None:
            self.agent.return_statistics.merge(total[-3:], means[-1:])
            total, means = total[:-3], means[:-1]
        return None if self.agent.observation_statistics is None else (total, means), finite

    def _merge_observations(self, observed: tuple[Tensor, Tensor] | None) -> None:
        if observed is not None and self.agent.observation_statistics is not None:
            self.agent.observation_statistics.merge(*observed)
            self.agent.refresh()

    def _train(self, batch: Batch, rates: ScheduledValues) -> dict[str, float]:
        """Take a step for every minibatch until all epochs are done or `ppo.kl_stop` is exceeded."""
        config = self._config
        accumulator, stopped = MeanAccumulator(config.minibatch_count, self._curiosity_losses), False
        for minibatch, scalars in self._minibatches(batch, rates):
            beat()
            epoch = minibatch.epoch
            trained = epoch < config.epochs_of_policy and not stopped, epoch < config.epochs_of_value
            if not any(trained):
                break
            total = self._gradient(minibatch.microbatches, scalars, trained)
            *means, norm = self.adam.propose(total, minibatch.samples, self._active_rates(rates, trained))
            finite = self.guard.is_finite(total, means, norm)
            if not finite or self.adam.overflows():
                problem = _OVERFLOW if finite else self._problem
                self.guard.reject(batch, minibatch, scalars, trained, total, problem, dumped=not finite)
                accumulator.skip(trained[0])
                self.agent.trained_buffers.discard()
                continue
            accumulator.add(means, norm, *trained)
            if trained[0] and config.kl_stop is not None and means[KL] > config.kl_stop:
                stopped = True
                if not (trained[1] and config.separate):
                    break
                self.adam.propose(total, minibatch.samples, self._active_rates(rates, (False, True)))
            self.adam.accept()
            self.agent.trained_buffers.accept()
        metrics = accumulator.metrics()
        metrics |= self.guard.end(metrics["update_steps"])
        if not metrics["update_steps"]:
            return metrics
        loss = metrics["policy_loss"] + config.value_coefficient * metrics["value_loss"]
        return metrics | {"loss": loss - rates.entropy * metrics["entropy"], "kl_stopped": float(stopped)}

    @property
    def _problem(self) -> str:
        """Message about the last gradient step for the case that the non-finite value can't be located."""
        if self.agent.trained_buffers.is_nan:
            return "a buffer of the encoder, core or head became NaN: check how its forward pass updates it"
        return "the gradient is not finite: lower ppo.learning_rate or check the rewards"

    def _minibatches(self, batch: Batch, rates: ScheduledValues) -> Iterator[tuple[Minibatch, Tensor]]:
        """Iterate over all minibatches, epoch by epoch, with LOSS_SCALARS of each."""
        for epoch in range(len(batch.advantage_statistics)):
            batch.begin_epoch(epoch)  # changes the statistics that the scalars depend on
            yield from zip(batch.minibatches_of(epoch), self._loss_scalars(batch, epoch, rates), strict=True)

    def _loss_scalars(self, batch: Batch, epoch: int, rates: ScheduledValues) -> Sequence[Tensor]:
        # numbers of Python: a dozen operations on small tensors would take 0.1 ms per epoch
        constants = rates.clip, rates.entropy, self.kl.coefficient
        rows = [
            (mean, 1 / (deviation + 1e-8), *constants)
            for _, mean, deviation in batch.advantage_statistics[epoch].tolist()
        ]
        return torch.tensor(rows, dtype=torch.float64).to(self.agent.device, self.agent.dtype).unbind()

    def _rates(self, progress: float) -> ScheduledValues:
        policy, value, *others = (schedule(progress) for schedule in self._schedules)
        return ScheduledValues(policy * self.kl.rate_factor, value * self.kl.rate_factor, *others)

    def _active_rates(self, rates: ScheduledValues, trained: TrainMask) -> Mapping[str, float]:
        curiosity = {"curiosity": rates.curiosity} if "curiosity" in self.adam.steps else {}
        if "all" in self.adam.steps:
            return {"all": rates.policy, **curiosity}
        both = {"policy": rates.policy, "value": rates.value}
        return {name: rate for (name, rate), train in zip(both.items(), trained, strict=True) if train} | curiosity

    def restart_episodes(self) -> None:
        """Reset the per-episode state of curiosity, when all environments start new episodes."""
        if self._prepare.intrinsic is not None:
            self._prepare.intrinsic.restart_episodes()

    def shard_states(self) -> dict[str, dict[str, Tensor]]:
        """State of curiosity for each shard that this rank trains on, by the name of its file in a checkpoint."""
        intrinsic = self._prepare.intrinsic
        return {} if intrinsic is None else {_file(shard): state for shard, state in intrinsic.state().items()}

    def load_shard_states(self, read: Callable[[str], Mapping[str, Tensor]]) -> None:
        """Restore `shard_states()`; `read` returns the state of a name. Raises ValueError if a state does not fit."""
        if self._prepare.intrinsic is not None:
            for shard in self._shards:
                self._prepare.intrinsic.load(shard, read(_file(shard)))

    def state(self) -> dict[str, Tensor]:
        """State for a checkpoint, by name, besides the agent's and `shard_states`."""
        factors = torch.tensor([self.kl.rate_factor, self.kl.coefficient], dtype=torch.float64)
        skipped = {"skipped_iterations": torch.tensor([self.guard.skipped_iterations])} if self.guard.skips else {}
        return {**self.adam.state(), "factors": factors, **skipped}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore `state()`. Raises ValueError, naming the tensor, if one does not fit."""
        check_state(self.state(), state)
        self.adam.load(state)
        self.kl.rate_factor, self.kl.coefficient = state["factors"].tolist()
        if self.guard.skips:
            self.guard.skipped_iterations = int(state["skipped_iterations"])


def _file(shard: int) -> str:
    return f"curiosity-{shard:04d}"

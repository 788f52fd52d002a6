"""One PPO update, for every plan: prepare -> minibatches -> gradient -> step.

Each shard contributes sums; the group adds them in shard order; every decision is taken from the total. So the update is the
same, bit for bit, whoever carries the shards.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Batch
from lockstep.algorithm.gradient import OrderedGradient, Replicate, ReplicatedGradient, TrainMask
from lockstep.algorithm.non_finite import locate_non_finite
from lockstep.algorithm.prepare import Preparation, as_parts
from lockstep.compiling.kernels import MakeKernel, eager
from lockstep.group.group import Group
from lockstep.models.state import check_state
from lockstep.ppo.adam import Adam
from lockstep.ppo.schedules import Schedule
from lockstep.ppo.settings import PPOConfig
from lockstep.ppo.statistics import KL, STATISTICS, MeanAccumulator
from lockstep.rollout import Rollout

__all__ = ["NonFinite", "Update"]


class NonFinite(ArithmeticError):
    """A loss or gradient is NaN or infinite. The weights are still those of the last good step."""


@dataclass
class Rates:
    """The scheduled numbers of one update."""

    policy: float
    value: float
    curiosity: float
    clip: float
    entropy: float


class Update:
    """Trains `agent` on rollouts. Holds what lives from one update to the next."""

    def __init__(
        self,
        agent: Agent,
        config: PPOConfig,
        group: Group,
        shards: Sequence[int],
        seed: int,
        *,
        share_data: bool = False,
        vtrace: bool = False,
        fused: bool = False,
        recompute: bool = False,
        replicate: Replicate | None = None,
        make_kernel: MakeKernel = eager,
    ) -> None:
        """A rank's share of the training.

        Args:
            agent: What is trained.
            config: How.
            group: The ranks that train. Each contributes as many rows as it has shards or, if fused, one.
            shards: Indices of the shards that this rank trains on, ascending.
            seed: The experiment's.
            share_data: Whether minibatches are drawn from all shards' samples together (`plan.share_data`).
            vtrace: Whether samples are corrected for having been collected by older weights (`plan.correction`).
            fused: Whether this rank's shards are computed as one batch (not `plan.exact`).
            recompute: Whether starting states of sequences are made anew in every epoch (`rollout.recompute_states`).
            replicate: Wraps the policy for `plan.gradients: ddp`; None: gradients are added in order.
            make_kernel: How the arithmetic of gradients and steps is run (`runtime.compile`).
        """
        self.agent = agent
        self.fused = fused
        self._config = config
        self._group = group
        self._shards = shards
        self._prepare = Preparation(agent, config, group, shards, seed, share_data, vtrace, fused, recompute)
        self._gradient = (
            OrderedGradient(agent, config, group, make_kernel)
            if replicate is None
            else ReplicatedGradient(agent, config, group, replicate)
        )
        self.adam = self._optimizer(make_kernel if shards else eager)
        self.rate_factor = 1.0
        """What the KL-adaptive learning rate has been multiplied by so far."""
        self.kl_coefficient = config.kl_coefficient
        """β of the surrogate `kl`."""
        own = None if agent.curiosity is None else agent.curiosity.config.learning_rate
        given = (config.learning_rate, config.value_learning_rate, own, config.clip, config.entropy)
        self._schedules = [Schedule.parse(config.learning_rate if one is None else one) for one in given]

    def _optimizer(self, make_kernel: MakeKernel) -> Adam:
        """One for all; what predicts for curiosity is a part of its own, that has no share in the norm which is clipped."""
        agent, config = self.agent, self._config
        parts = {name: part.stop - part.start for name, part in agent.flat.slices.items()}
        own = {name: size for name, size in parts.items() if name == "curiosity"}
        if not config.separate:
            parts = {"all": sum(parts.values()) - sum(own.values()), **own}
        others = len(STATISTICS) + len(self._others)
        limits = config.adam_epsilon, config.max_grad_norm
        return Adam(agent.flat.buffer, parts, *limits, others, make_kernel, free=len(own))

    @property
    def _others(self) -> tuple[str, ...]:
        """Names of curiosity's losses."""
        return () if self.agent.curiosity is None else self.agent.curiosity.losses

    def __call__(self, rollouts: Sequence[Rollout], iteration: int, progress: float) -> dict[str, float]:
        """All epochs over one iteration's rollouts, those of this rank's shards, ascending.

        `progress` in [0, 1] is the share of the run that is done. Returns the update's metrics, equal on every rank.
        A rank that trains on nothing has none: it returns {} at once. Raises NonFinite on every rank at once, with the value that is the
        cause, if it is one of the rollouts.
        """
        if not rollouts:
            return {}
        try:
            return self._update(rollouts, iteration, progress)
        except NonFinite as error:
            cause = locate_non_finite(rollouts, self._shards, iteration, self._group, self.fused)
            raise NonFinite(cause or str(error)) from None

    def _update(self, rollouts: Sequence[Rollout], iteration: int, progress: float) -> dict[str, float]:
        observed = self._merge_moments(rollouts)
        if self._prepare.drive is not None:
            self._prepare.drive.observe(rollouts)
            assert self.agent.curiosity is not None
            if iteration <= self.agent.curiosity.config.warmup:
                self._observe(observed)
                return {"warmup": 1.0}
        batch = self._prepare(rollouts, iteration, progress)
        if not bool(batch.table.isfinite().all()):
            raise NonFinite(
                "an observation, a reward or the critic's estimate is not finite: look at the environment, or lower ppo.learning_rate"
            )
        rates = self._rates(progress)
        metrics = batch.metrics | self._train(batch, rates)
        self._observe(observed)
        self._adapt(metrics["last_kl"])
        return metrics | {"learning_rate": rates.policy, "clip": rates.clip, "entropy_coefficient": rates.entropy}

    def _observe(self, observed: tuple[Tensor, Tensor] | None) -> None:
        """Merges the observations' moments, at the end: within an iteration, collecting and training see them through the same ones."""
        if observed is not None and self.agent.observation_moments is not None:
            self.agent.observation_moments.merge(*observed)
            self.agent.refresh()

    def _merge_moments(self, rollouts: Sequence[Rollout]) -> tuple[Tensor, Tensor] | None:
        """Merges the return moments, which scale this iteration's rewards. Returns the sums of the observations, and the means
        that they are about: the same in all shards.
        """
        if not rollouts[0].moments.numel():
            return None
        sums = torch.stack([rollout.moments for rollout in rollouts])
        total, means = self._group.reduce(as_parts(sums, self.fused), "moments"), rollouts[0].means
        if not bool(total.isfinite().all()):
            raise NonFinite("an observation or a reward is not finite; the environment gave NaN or infinity")
        if self.agent.return_moments is not None:
            self.agent.return_moments.merge(total[-3:], means[-1:])
            return (total[:-3], means[:-1]) if self.agent.observation_moments is not None else None
        return total, means

    def make_kernels(self, samples: int) -> None:
        """Makes, before they are needed, all kernels that this rank may use. `samples` are those of one shard in one iteration."""
        agent, config, held = self.agent, self._config, self._shards
        if not held or not agent.plain or not isinstance(self._gradient, OrderedGradient):
            return
        rows = (samples // config.minibatches) * (len(held) if self.fused else 1)
        policy, value, stops = config.epochs_of_policy, config.epochs_of_value, config.kl_stop is not None
        alone: list[TrainMask] = [(True, False)] * (policy > value)
        alone += [(False, True)] * (policy < value or (stops and config.separate))
        for trained in [(True, True), *alone]:
            self._gradient.make_kernels(
                torch.zeros(rows, agent.layout.width, dtype=agent.dtype, device=agent.device), trained
            )

    def _train(self, batch: Batch, rates: Rates) -> dict[str, float]:
        config, tally, stopped = self._config, MeanAccumulator(self._config.minibatches, self._others), False
        for (epoch, (count, _, _), minibatch), aim in zip(batch.minibatches(), self._aims(batch, rates), strict=True):
            trained = epoch < config.epochs_of_policy and not stopped, epoch < config.epochs_of_value
            if not any(trained):
                break
            total = self._gradient(minibatch, aim, trained)
            *found, norm = self.adam.propose(total, count, self._active(rates, trained))
            if not math.isfinite(norm) or not all(map(math.isfinite, found)):
                raise NonFinite(
                    f"the gradient's norm is {norm} in epoch {epoch + 1}: lower ppo.learning_rate or look at the rewards"
                )
            if self.agent.trained_buffers.is_nan:
                raise NonFinite(
                    f"a buffer of the encoder or core became NaN in epoch {epoch + 1}: look at how its forward pass computes it"
                )
            tally.add(found, norm, *trained)
            if trained[0] and config.kl_stop is not None and found[KL] > config.kl_stop:
                stopped = True
                if not (trained[1] and config.separate):
                    break
                self.adam.propose(total, count, self._active(rates, (False, True)))
            self.adam.accept()
            self.agent.trained_buffers.accept()
        metrics = tally.metrics()
        loss = metrics["policy_loss"] + config.value_coefficient * metrics["value_loss"]
        return metrics | {"loss": loss - rates.entropy * metrics["entropy"], "kl_stopped": float(stopped)}

    def _aims(self, batch: Batch, rates: Rates) -> Sequence[Tensor]:
        """AIM of every minibatch."""
        _, mean, deviation = batch.table.flatten(0, 1).unbind(1)
        same = torch.tensor([rates.clip, rates.entropy, self.kl_coefficient], dtype=mean.dtype).expand(len(mean), 3)
        aims = torch.cat([torch.stack([mean, 1 / (deviation + 1e-8)], 1), same], 1)
        return aims.to(self.agent.device, self.agent.dtype).unbind()

    def _rates(self, progress: float) -> Rates:
        policy, value, *others = (schedule(progress) for schedule in self._schedules)
        return Rates(policy * self.rate_factor, value * self.rate_factor, *others)

    def _active(self, rates: Rates, trained: TrainMask) -> Mapping[str, float]:
        own = {"curiosity": rates.curiosity} if "curiosity" in self.adam.steps else {}
        if not self._config.separate:
            return {"all": rates.policy, **own}
        both = {"policy": rates.policy, "value": rates.value}
        return {name: rate for (name, rate), on in zip(both.items(), trained, strict=True) if on} | own

    def _adapt(self, kl: float) -> None:
        """Steers by the KL of the last epoch: the learning rate (as rl_games and rsl_rl do) and the penalty (paper, section 4)."""
        config = self._config
        if config.learning_rate_kl is not None:
            if kl > 2 * config.learning_rate_kl:
                self.rate_factor = max(self.rate_factor / 1.5, 1e-3)
            elif kl < config.learning_rate_kl / 2:
                self.rate_factor = min(self.rate_factor * 1.5, 1e2)
        if config.surrogate == "kl":
            if kl > 1.5 * config.kl_target:
                self.kl_coefficient = min(self.kl_coefficient * 2, 1e4)
            elif kl < config.kl_target / 1.5:
                self.kl_coefficient = max(self.kl_coefficient / 2, 1e-4)

    def renew(self) -> None:
        """All environments begin new episodes."""
        if self._prepare.drive is not None:
            self._prepare.drive.renew()

    def carried(self) -> dict[str, dict[str, Tensor]]:
        """What curiosity remembers of the shards that are trained on here, by the names of files in a checkpoint."""
        drive = self._prepare.drive
        return {} if drive is None else {_file(shard): own for shard, own in drive.state().items()}

    def take_back(self, read: Callable[[str], Mapping[str, Tensor]]) -> None:
        """Takes back `carried()`, from what `read` gives for such a name. Raises ValueError if it does not fit."""
        if self._prepare.drive is not None:
            for shard in self._shards:
                self._prepare.drive.load(shard, read(_file(shard)))

    def state(self) -> dict[str, Tensor]:
        """All that a checkpoint needs besides the agent and what is `carried`, by name."""
        factors = torch.tensor([self.rate_factor, self.kl_coefficient], dtype=torch.float64)
        return {**self.adam.state(), "factors": factors}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Takes back `state()`. Raises ValueError, naming the tensor, if one does not fit."""
        check_state(self.state(), state)
        self.adam.load(state)
        self.rate_factor, self.kl_coefficient = state["factors"].tolist()


def _file(shard: int) -> str:
    return f"curiosity-{shard:04d}"

"""Advantages that are recomputed in every epoch, with the current critic."""

import pytest
import torch
from tests.algorithm.minibatches import minibatches_of
from tests.threaded import on_ranks
from tests.watched import DISCRETE, ITERATION, SEED, agent_of, perturb, rollouts_of
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Batch
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.prepare import Preparation
from lockstep.algorithm.update import Update
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.group.group import Group
from lockstep.group.solo import Solo
from lockstep.ppo.advantages import advantages
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import Rollout

SHARDS = 2
CONFIG = PPOConfig(epochs=3, minibatches=2, learning_rate=0.01, recompute_advantages=True)
TWO_HEADS = CuriosityConfig("rnd", "two-heads", gamma=0.9, hidden=(8,), feature_size=4)
OPTIONS = {"separate data": {}, "shared data": {"share_data": True}, "fused": {"fused": True}}


def expected_columns(agent: Agent, rollouts: list[Rollout]) -> Tensor:
    """Advantages and value targets `[R, 2]` of valid rows, from values by the current weights."""
    columns = []
    for rollout in rollouts:
        rows = rollout.observations.flatten(0, 1)
        values = agent.policy.value(rows).detach().view(rollout.observations.shape[:2])
        flags = rollout.terminated, rollout.truncated, rollout.valid
        advantage = advantages(rollout.rewards, values, *flags, CONFIG.gamma, CONFIG.gae_lambda)
        pair = torch.stack([advantage, advantage + values[:-1]], -1)
        columns.append(torch.where(rollout.valid.unsqueeze(-1), pair, 0).flatten(0, 1))
    return torch.cat(columns)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_epochs_after_the_first_use_the_current_critic(options: dict[str, bool]) -> None:
    agent = agent_of()
    rollouts = rollouts_of(agent)
    prepare = Preparation(agent, CONFIG, Solo(), range(SHARDS), SEED, UpdateOptions(**options))
    batch = prepare(rollouts, ITERATION, 0.0)
    before, epoch = batch.rows.clone(), 0
    for minibatch in minibatches_of(batch):
        if minibatch.epoch != epoch:
            epoch = minibatch.epoch
            scalars = agent.layout.scalars(batch.rows)
            columns = torch.stack([scalars.advantages, scalars.value_targets], 1)
            assert columns == pytest.approx(expected_columns(agent, rollouts), abs=1e-12)
            check_statistics(batch, epoch, scalars.advantages, scalars.weights)
            others = [
                column for column in range(before.shape[1]) if column not in (before.shape[1] - 4, before.shape[1] - 3)
            ]
            assert torch.equal(batch.rows[:, others], before[:, others])
        perturb(agent)
    assert epoch == CONFIG.epochs - 1


def check_statistics(batch: Batch, epoch: int, advantage: Tensor, weights: Tensor) -> None:
    for number, statistics in enumerate(batch.advantage_statistics[epoch].tolist()):
        rows = batch.order[:, epoch, number].flatten()
        valid = advantage[rows][weights[rows] == 1]
        assert statistics == pytest.approx([len(valid), valid.mean().item(), valid.std(correction=0).item()])


def test_the_first_epoch_uses_the_values_of_the_rollout() -> None:
    """With one epoch the option changes nothing."""
    digests = set()
    for recompute in (False, True):
        agent = agent_of()
        config = PPOConfig(epochs=1, minibatches=2, recompute_advantages=recompute)
        Update(agent, config, Solo(), range(SHARDS), SEED)(rollouts_of(agent), ITERATION, 0.0)
        digests.add(agent.digest())
    assert len(digests) == 1


def test_targets_of_the_intrinsic_head_are_recomputed() -> None:
    agent = agent_of(curiosity=TWO_HEADS)
    prepare = Preparation(agent, CONFIG, Solo(), range(SHARDS), SEED, UpdateOptions())
    batch = prepare(rollouts_of(agent), ITERATION, 0.0)
    assert batch.recompute is not None
    targets, values = (column.clone() for column in agent.layout.intrinsic_values(batch.rows))
    batch.recompute(batch, 1)
    assert agent.layout.intrinsic_values(batch.rows)[0] == pytest.approx(targets, abs=1e-12)  # the weights are the same
    perturb(agent)
    batch.recompute(batch, 1)
    assert (agent.layout.intrinsic_values(batch.rows)[0] - targets).abs().max() > 1e-3
    assert torch.equal(agent.layout.intrinsic_values(batch.rows)[1], values)


@pytest.mark.parametrize("options", [{}, {"share_data": True}, {"vtrace": True}], ids=["separate", "shared", "vtrace"])
def test_ranks_give_the_same_bits(options: dict[str, bool]) -> None:
    def train(group: Group, shards: object) -> str:
        agent = agent_of(DISCRETE, normalize=True)
        rollouts = rollouts_of(agent, 4)
        perturb(agent)
        update = Update(agent, CONFIG, group, shards, SEED, UpdateOptions(**options))
        update([rollouts[shard] for shard in shards], ITERATION, 0.0)
        return agent.digest()

    shares = [[(0, 1, 2, 3)], [(0, 1), (2, 3)], [(0, 1), (2,), (3,)]]
    assert len({digest for share in shares for digest in on_ranks(share, train)}) == 1

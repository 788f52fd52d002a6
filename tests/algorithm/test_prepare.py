"""Minibatches of shared data, compared with one permutation of all samples."""

import pytest
import torch
from tests.algorithm.minibatches import minibatches_of
from tests.threaded import on_ranks
from tests.watched import CONTINUOUS, DISCRETE, ITERATION, ROWS, SEED, agent_of, perturb, rollouts_of
from torch import Tensor

from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.prepare import Batch, Preparation
from lockstep.algorithm.update import Update
from lockstep.envs.spaces import Spaces
from lockstep.group.group import Group
from lockstep.group.solo import Solo
from lockstep.ppo.settings import PPOConfig
from lockstep.randomness import stream

SHARDS, EPOCHS, MINIBATCHES = 4, 3, 2
CONFIG = PPOConfig(epochs=EPOCHS, minibatches=MINIBATCHES, learning_rate=0.01, recompute_advantages=False)
SHARES = {
    "one rank": [(0, 1, 2, 3)],
    "two": [(0, 1), (2, 3)],
    "three, unequal": [(0, 1), (2,), (3,)],
    "four": [(0,), (1,), (2,), (3,)],
}


def prepare(group: Group, shards: object, share_data: bool = True) -> Batch:
    agent = agent_of()
    rollouts = rollouts_of(agent, SHARDS)
    return Preparation(agent, CONFIG, group, shards, SEED, UpdateOptions(share_data=share_data))(
        [rollouts[shard] for shard in shards], ITERATION, 0.0
    )


def minibatch_rows(batch: Batch) -> list[list[Tensor]]:
    return [[microbatch.rows for microbatch in microbatches] for _, _, _, microbatches in minibatches_of(batch)]


@pytest.mark.parametrize("shares", SHARES.values(), ids=SHARES)
def test_shared_minibatch_is_a_slice_of_one_permutation(shares: list[tuple[int, ...]]) -> None:
    separate = prepare(Solo(), range(SHARDS), share_data=False)  # rows: those of all shards in order, not yet permuted
    batches = on_ranks(shares, prepare)
    permutations = stream(SEED, "shared-minibatches", ITERATION)
    for epoch in range(EPOCHS):
        slices = torch.from_numpy(permutations.permutation(SHARDS * ROWS)).chunk(MINIBATCHES)
        for m, expected in enumerate(slices):
            microbatches = [
                microbatch for batch in batches for microbatch in minibatch_rows(batch)[epoch * MINIBATCHES + m]
            ]
            assert len(microbatches) == SHARDS
            assert {len(microbatch) for microbatch in microbatches} == {ROWS // MINIBATCHES}
            assert torch.equal(torch.cat(microbatches), separate.rows[expected])
            weight, advantage = separate.rows[expected, -1], separate.rows[expected, -4]
            valid = advantage[weight == 1]
            for batch in batches:
                found = batch.advantage_statistics[epoch, m].tolist()
                assert found == pytest.approx([len(valid), valid.mean().item(), valid.std(correction=0).item()])


@pytest.mark.parametrize(
    ("dtype", "mean", "deviation"), [(torch.float32, 1e4, 0.1), (torch.float64, 1e8, 0.01), (torch.float64, -1e12, 1.0)]
)
def test_advantage_statistics_with_a_mean_far_above_the_deviation(
    dtype: torch.dtype, mean: float, deviation: float
) -> None:
    agent = agent_of(dtype=dtype)
    rollouts = rollouts_of(agent)
    for shard, rollout in enumerate(rollouts):
        noise = torch.from_numpy(stream(SEED, "large", shard).standard_normal(rollout.rewards.shape))
        rollout.rewards.copy_(torch.where(rollout.valid, mean + deviation * noise, 0))
        rollout.values.zero_()
    config = PPOConfig(
        gamma=0.0, epochs=EPOCHS, minibatches=MINIBATCHES, recompute_advantages=False
    )  # advantages are the rewards
    batch = Preparation(agent, config, Solo(), range(2), SEED, UpdateOptions())(rollouts, ITERATION, 0.0)
    for expected, microbatches in zip(
        batch.advantage_statistics.flatten(0, 1).tolist(), minibatch_rows(batch), strict=True
    ):
        rows = torch.cat(microbatches).to(torch.float64)
        valid = rows[rows[:, -1] == 1, -4]
        assert expected == pytest.approx([len(valid), valid.mean().item(), valid.std(correction=0).item()], rel=1e-6)


def test_separate_data_stay_with_their_shard() -> None:
    batch = prepare(Solo(), range(SHARDS), share_data=False)
    for shard, microbatch in enumerate(batch.order):
        for epoch in microbatch:
            assert sorted(epoch.flatten().tolist()) == list(range(shard * ROWS, (shard + 1) * ROWS))


@pytest.mark.parametrize("spaces", [DISCRETE, CONTINUOUS], ids=["discrete", "continuous"])
@pytest.mark.parametrize(
    "options", [{}, {"share_data": True}, {"share_data": True, "vtrace": True}], ids=["separate", "shared", "vtrace"]
)
def test_any_number_of_ranks_gives_the_same_bits(spaces: Spaces, options: dict[str, bool]) -> None:
    def train(group: Group, shards: object) -> tuple[str, dict[str, float]]:
        agent = agent_of(spaces, normalize=True)
        rollouts = rollouts_of(agent, SHARDS)
        perturb(agent)
        update = Update(agent, CONFIG, group, shards, SEED, UpdateOptions(**options))
        metrics = update([rollouts[shard] for shard in shards], ITERATION, 0.0)
        return agent.digest(), metrics

    results = [result for shares in SHARES.values() for result in on_ranks(shares, train)]
    assert len(results) == 10
    assert all(result == results[0] for result in results)


def test_sharing_data_changes_only_the_choice_of_samples() -> None:
    """With a single minibatch, shared and separate data give the same weights up to rounding."""
    distances = []
    for minibatches in (1, 2):
        agents = [agent_of(), agent_of()]
        config = PPOConfig(epochs=EPOCHS, minibatches=minibatches, learning_rate=0.01, recompute_advantages=False)
        for agent, share_data in zip(agents, (False, True), strict=True):
            update = Update(agent, config, Solo(), range(2), SEED, UpdateOptions(share_data=share_data))
            update(rollouts_of(agent), ITERATION, 0.0)
        distances.append((agents[0].flat.buffer - agents[1].flat.buffer).abs().max().item())
    assert distances[0] < 1e-12
    assert distances[1] > 1e-4

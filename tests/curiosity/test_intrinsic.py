"""Intrinsic rewards: normalization over all shards, metrics, and saved state."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.watched import COUNT, STEPS, agent_of, rollouts_of
from torch import Tensor

from lockstep.curiosity.curiosity import Curiosity, Transitions
from lockstep.curiosity.intrinsic import IntrinsicRewards, reward_metrics
from lockstep.curiosity.settings import CuriosityConfig
from lockstep.group.group import ordered_sum
from lockstep.rollout import Rollout

GAMMA = 0.9


class Sum(Curiosity):
    """Method whose reward is the sum of the next observation. Its per-episode state is the number of rollouts."""

    def reward(
        self, steps: Sequence[Transitions], carried: Sequence[dict[str, Tensor]], reduce: object
    ) -> list[Tensor]:
        for state in carried:
            state["steps"] += 1
        return [transitions.features[1:].sum(-1).abs() for transitions in steps]

    def initial_state(self, count: int) -> dict[str, Tensor]:
        return {"steps": torch.zeros(count)}


def intrinsic_rewards_of(shards: Sequence[int] = (0, 1), **settings: object) -> tuple[IntrinsicRewards, Sum]:
    torch.manual_seed(1)
    config = CuriosityConfig("rnd", **settings)  # type: ignore[arg-type]
    method = Sum(agent_of().spaces, config, False, torch.float64)
    return IntrinsicRewards(method, GAMMA, shards, ordered_sum), method


def rollouts() -> list[Rollout]:
    return rollouts_of(agent_of())


def raw_rewards(rollout: Rollout) -> np.ndarray:
    return np.where(rollout.valid, rollout.observations[1:].sum(-1).abs(), 0)


def test_rewards_are_divided_by_the_deviation_of_the_discounted_return_over_all_shards() -> None:
    intrinsic, _ = intrinsic_rewards_of()
    running, discounted_returns = np.zeros((2, COUNT)), []
    for _ in range(2):  # the return continues from one rollout to the next
        shard_rollouts = rollouts()
        found = intrinsic(shard_rollouts)
        for shard, rollout in enumerate(shard_rollouts):
            for t in range(STEPS):
                for b in range(COUNT):
                    if rollout.valid[t, b]:
                        running[shard, b] = GAMMA * running[shard, b] + raw_rewards(rollout)[t, b]
                        discounted_returns.append(running[shard, b])
        for bonus, rollout in zip(found, shard_rollouts, strict=True):
            assert np.allclose(bonus.rewards, raw_rewards(rollout) / np.std(discounted_returns), rtol=1e-6)


def test_rewards_are_unchanged_without_normalization() -> None:
    intrinsic, _ = intrinsic_rewards_of(normalize_rewards=False)
    shard_rollouts = rollouts()
    for bonus, rollout in zip(intrinsic(shard_rollouts), shard_rollouts, strict=True):
        assert np.array_equal(bonus.rewards, raw_rewards(rollout))


def test_metrics_include_the_mean_intrinsic_return_of_episodes() -> None:
    intrinsic, _ = intrinsic_rewards_of(normalize_rewards=False)
    running: dict[tuple[int, int], float] = {}
    for _ in range(3):  # episodes continue from one rollout to the next
        shard_rollouts, totals = rollouts(), []
        counts = torch.stack([bonus.metric_sums for bonus in intrinsic(shard_rollouts)]).sum(0).tolist()
        for shard, rollout in enumerate(shard_rollouts):
            ended = rollout.terminated | rollout.truncated
            for b in range(COUNT):
                for t in range(STEPS):
                    running[shard, b] = running.get((shard, b), 0) + raw_rewards(rollout)[t, b]
                    if ended[t, b]:
                        totals.append(running.pop((shard, b)))
        values = np.concatenate([raw_rewards(rollout)[rollout.valid] for rollout in shard_rollouts])
        assert reward_metrics(counts) == pytest.approx(
            {
                "intrinsic_reward_mean": values.mean(),
                "intrinsic_reward_std": values.std(),
                "intrinsic_return": np.mean(totals),
            }
        )
    assert reward_metrics([1.0, 1.0, 4.0, 0.0, 0.0]).keys() == {"intrinsic_reward_mean", "intrinsic_reward_std"}


def test_restored_state_gives_the_same_rewards() -> None:
    (first, method), (second, other) = intrinsic_rewards_of(), intrinsic_rewards_of()
    first(rollouts())
    for shard, state in first.state().items():
        second.load(shard, state)
    other.statistics["returns"].load(method.statistics["returns"].state())
    for one, two in zip(first(rollouts()), second(rollouts()), strict=True):
        assert torch.equal(one.rewards, two.rewards)
        assert torch.equal(one.metric_sums, two.metric_sums)
    assert first.state()[0]["method.steps"].tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"tensor 'method.steps' is missing"):
        second.load(0, {name: value for name, value in state.items() if name != "method.steps"})
    with pytest.raises(ValueError, match=r"tensor 'return' is missing"):
        second.load(0, {})


def test_renew_resets_per_episode_state_but_keeps_the_scale() -> None:
    intrinsic, _ = intrinsic_rewards_of()
    intrinsic(rollouts())
    before = intrinsic.state()[1]["discounted"].clone()
    intrinsic.restart_episodes()
    state = intrinsic.state()[1]
    assert torch.equal(state["discounted"], before)
    assert state["return"].tolist() == state["method.steps"].tolist() == [0, 0]


def test_rewards_of_a_shard_are_the_same_on_another_rank() -> None:
    """Without normalization, the rewards of a shard do not depend on other shards."""
    both_shards, second_shard = (
        intrinsic_rewards_of(normalize_rewards=False)[0],
        intrinsic_rewards_of((1,), normalize_rewards=False)[0],
    )
    shard_rollouts = rollouts()
    assert torch.equal(both_shards(shard_rollouts)[1].rewards, second_shard(shard_rollouts[1:])[0].rewards)


def test_per_episode_state_can_be_saved_before_the_first_reward() -> None:
    """A checkpoint may be written during `curiosity.warmup`, in which no rewards are computed."""
    intrinsic, _ = intrinsic_rewards_of()
    shard_rollouts = rollouts()
    intrinsic.observe(shard_rollouts)
    restored, _ = intrinsic_rewards_of()
    for shard, state in intrinsic.state().items():
        restored.load(shard, state)
    assert sorted(restored.state()) == [0, 1]
    restored.observe(shard_rollouts)
    for found, expected in zip(restored(shard_rollouts), intrinsic(shard_rollouts), strict=True):
        assert torch.equal(found.rewards, expected.rewards)
        assert torch.equal(found.metric_sums, expected.metric_sums)

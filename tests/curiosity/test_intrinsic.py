"""Intrinsic rewards: their scale over all shards, what is counted of them, and how they go on."""

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
    """Rewards the sum of the next observation, and what was carried along; carries the number of steps of the episode."""

    def reward(
        self, steps: Sequence[Transitions], carried: Sequence[dict[str, Tensor]], reduce: object
    ) -> list[Tensor]:
        for own in carried:
            own["steps"] += 1
        return [own.features[1:].sum(-1).abs() for own in steps]

    def initial_state(self, count: int) -> dict[str, Tensor]:
        return {"steps": torch.zeros(count)}


def drive_of(shards: Sequence[int] = (0, 1), **settings: object) -> tuple[IntrinsicRewards, Sum]:
    torch.manual_seed(1)
    config = CuriosityConfig("rnd", **settings)  # type: ignore[arg-type]
    method = Sum(agent_of().spaces, config, False, torch.float64)
    return IntrinsicRewards(method, GAMMA, shards, ordered_sum), method


def rollouts() -> list[Rollout]:
    return rollouts_of(agent_of())


def raw(rollout: Rollout) -> np.ndarray:
    return np.where(rollout.valid, rollout.observations[1:].sum(-1).abs(), 0)


def test_scaled_by_the_deviation_of_the_discounted_return_over_all_shards() -> None:
    drive, _ = drive_of()
    running, seen = np.zeros((2, COUNT)), []
    for _ in range(2):  # the return goes on from one rollout to the next
        own = rollouts()
        found = drive(own)
        for shard, rollout in enumerate(own):
            for t in range(STEPS):
                for b in range(COUNT):
                    if rollout.valid[t, b]:
                        running[shard, b] = GAMMA * running[shard, b] + raw(rollout)[t, b]
                        seen.append(running[shard, b])
        for bonus, rollout in zip(found, own, strict=True):
            assert np.allclose(bonus.rewards, raw(rollout) / np.std(seen), rtol=1e-6)


def test_as_they_are() -> None:
    drive, _ = drive_of(normalize_rewards=False)
    own = rollouts()
    for bonus, rollout in zip(drive(own), own, strict=True):
        assert np.array_equal(bonus.rewards, raw(rollout))


def test_returns_of_episodes_are_counted() -> None:
    drive, _ = drive_of(normalize_rewards=False)
    running: dict[tuple[int, int], float] = {}
    for _ in range(3):  # episodes go on from one rollout to the next
        own, totals = rollouts(), []
        counts = torch.stack([bonus.counts for bonus in drive(own)]).sum(0).tolist()
        for shard, rollout in enumerate(own):
            ended = rollout.terminated | rollout.truncated
            for b in range(COUNT):
                for t in range(STEPS):
                    running[shard, b] = running.get((shard, b), 0) + raw(rollout)[t, b]
                    if ended[t, b]:
                        totals.append(running.pop((shard, b)))
        values = np.concatenate([raw(rollout)[rollout.valid] for rollout in own])
        assert reward_metrics(counts) == pytest.approx(
            {
                "intrinsic_reward_mean": values.mean(),
                "intrinsic_reward_std": values.std(),
                "intrinsic_return": np.mean(totals),
            }
        )
    assert reward_metrics([1.0, 1.0, 4.0, 0.0, 0.0]).keys() == {"intrinsic_reward_mean", "intrinsic_reward_std"}


def test_it_goes_on_from_a_checkpoint() -> None:
    (first, method), (second, other) = drive_of(), drive_of()
    first(rollouts())
    for shard, state in first.state().items():
        second.load(shard, state)
    other.moments["returns"].load(method.moments["returns"].state())
    for one, two in zip(first(rollouts()), second(rollouts()), strict=True):
        assert torch.equal(one.rewards, two.rewards)
        assert torch.equal(one.counts, two.counts)
    assert first.state()[0]["method.steps"].tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"tensor 'method.steps' is missing"):
        second.load(0, {name: value for name, value in state.items() if name != "method.steps"})
    with pytest.raises(ValueError, match=r"tensor 'return' is missing"):
        second.load(0, {})


def test_new_episodes_forget_but_the_scale_goes_on() -> None:
    drive, _ = drive_of()
    drive(rollouts())
    before = drive.state()[1]["discounted"].clone()
    drive.renew()
    state = drive.state()[1]
    assert torch.equal(state["discounted"], before)
    assert state["return"].tolist() == state["method.steps"].tolist() == [0, 0]


def test_a_shard_by_itself_is_the_same() -> None:
    """As long as nothing is scaled: sums over all shards are all that ranks have in common."""
    whole, alone = drive_of(normalize_rewards=False)[0], drive_of((1,), normalize_rewards=False)[0]
    own = rollouts()
    assert torch.equal(whole(own)[1].rewards, alone(own[1:])[0].rewards)


def test_what_is_carried_is_saved_before_the_first_reward() -> None:
    """A checkpoint may be written during `curiosity.warmup`, while no reward is asked for."""
    drive, _ = drive_of()
    own = rollouts()
    drive.observe(own)
    again, _ = drive_of()
    for shard, state in drive.state().items():
        again.load(shard, state)
    assert sorted(again.state()) == [0, 1]
    again.observe(own)
    for found, expected in zip(again(own), drive(own), strict=True):
        assert torch.equal(found.rewards, expected.rewards)
        assert torch.equal(found.counts, expected.counts)

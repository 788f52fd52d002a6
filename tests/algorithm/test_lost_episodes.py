"""Rollouts in which environments fail and are replaced: no row of the unfinished episode counts."""

import numpy as np
import pytest
import torch
from tests.algorithm.test_collect import CONTINUOUS, COUNT, GAMMA, Scripted, agent_of
from torch import Tensor

from lockstep.algorithm.collect import Shard, collect, rollout_sizes
from lockstep.curiosity.intrinsic import _count_rewards
from lockstep.envs.engine import Step
from lockstep.ppo.advantages import without_episode_ends
from lockstep.rollout import Rollout

STEPS = 6


class Failing(Scripted):
    """Scripted episodes in which environment 2 fails in the steps `failures`, counted from 1. Its episodes have 9, 5, 9, … steps."""

    failures: tuple[int, ...] = ()

    def step(self, actions: np.ndarray) -> Step:
        observations, rewards, terminated, truncated = super().step(actions)
        self.lost = [2] if len(self.taken) in self.failures else []
        for index in self.lost:
            self._ended[index], observations[index], rewards[index] = True, 0, 0
            terminated[index], truncated[index] = True, False
        return observations, rewards, terminated, truncated


def rollouts_of(failures: tuple[int, ...], count: int = 3) -> tuple[Shard, list[Rollout]]:
    agent, engine = agent_of(CONTINUOUS), Failing(CONTINUOUS)
    engine.failures = failures
    sizes = rollout_sizes(agent, STEPS, COUNT)
    shard = Shard(0, engine, [Rollout.empty(sizes)], 1, GAMMA)
    copies = []
    for iteration in range(1, count + 1):
        (rollout,) = collect([shard], agent, iteration)
        copies.append(Rollout(*(tensor.clone() for tensor in rollout.tensors().values())))
    return shard, copies


def valid_of(rollouts: list[Rollout], environment: int) -> list[list[int]]:
    return [rollout.valid[:, environment].int().tolist() for rollout in rollouts]


@pytest.mark.parametrize(
    ("failures", "valid", "counts"),
    [
        ((), [[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1], [1, 1, 1, 0, 1, 1]], [0, 0, 0]),
        # the rows of the first rollout have been trained on; the new episode begins after a reset row
        ((8,), [[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1], [1, 1, 0, 1, 1, 1]], [0, 1, 0]),
        # in the last row of a rollout, and then in the reset row
        ((6, 7), [[0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0]], [1, 1, 0]),
        # twice in one rollout, with an episode that counts before them
        ((12, 15), [[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 1]], [0, 1, 1]),
    ],
)
def test_rows_of_lost_episodes_are_not_valid(
    failures: tuple[int, ...], valid: list[list[int]], counts: list[int]
) -> None:
    _, whole = rollouts_of(())
    _, rollouts = rollouts_of(failures)
    assert valid_of(rollouts, 2) == valid
    assert [int(rollout.faults.sum()) for rollout in rollouts] == counts
    assert [int(rollout.faults[2]) for rollout in rollouts] == counts
    for environment in (0, 1):
        assert valid_of(rollouts, environment) == valid_of(whole, environment)


def test_lost_episodes_have_no_return_and_no_statistics() -> None:
    shard, (first, second, _) = rollouts_of((8,))
    assert second.episodes[:, 2].isnan().all()
    assert first.episodes[:, 2].isnan().all()
    count = int(second.valid.sum())
    assert second.statistics_sums[0] == count  # the features; then the returns
    assert shard.running.isfinite().all()
    _, (_, whole, _) = rollouts_of(())
    # environment 2 is not counted in the discounted return of its lost rows
    assert second.statistics_sums[-3] == count < int(whole.valid.sum())


def test_environment_that_fails_before_the_first_step_has_a_reset_row() -> None:
    agent, engine = agent_of(CONTINUOUS), Failing(CONTINUOUS)
    engine.lost, engine._ended[2] = [2], True
    shard = Shard(0, engine, [Rollout.empty(rollout_sizes(agent, STEPS, COUNT))], 1, GAMMA)
    (rollout,) = collect([shard], agent, 1)
    assert rollout.valid[:, 2].tolist() == [False, True, True, True, True, True]
    assert rollout.faults.tolist() == [0, 0, 1]


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64).unsqueeze(1)


def test_returns_across_episodes_skip_all_rows_that_are_not_valid() -> None:
    valid = torch.tensor([True, False, False, True, False]).unsqueeze(1)
    values, discounts, decays = without_episode_ends(column(1, 2, 3, 4, 5, 6), valid, 0.9, 0.8)
    assert values.flatten().tolist() == [1, 4, 4, 4, 6, 6]
    assert discounts.flatten().tolist() == [0.9, 1, 1, 0.9, 1]
    assert decays.flatten().tolist() == [0.8, 1, 1, 0.8, 1]


def test_intrinsic_return_of_a_lost_episode_is_not_counted() -> None:
    _, (_, lost, _) = rollouts_of((8,))
    _, (_, whole, _) = rollouts_of(())
    results = []
    for rollout in (whole, lost):
        running = torch.tensor([0.0, 0.0, 100.0], dtype=torch.float64)
        rewards = torch.where(rollout.valid, 1.0, 0.0)
        *_, returns, episodes = _count_rewards(rewards, rollout, running).tolist()
        results.append((returns, episodes))
        assert running[2] == rollout.valid[:, 2].flip(0).int().cumprod(0).sum()  # the steps of the current episode
    (returns, episodes), (lost_returns, lost_episodes) = results
    assert (returns - lost_returns, episodes - lost_episodes) == (103.0, 1)

"""Error message for the first value that is not finite: the same on every rank."""

import math
from collections.abc import Sequence

import pytest
import torch
from tests.threaded import on_ranks
from tests.watched import COUNT, ITERATION, SEED, STEPS, agent_of, rollouts_of

from lockstep.algorithm.non_finite import NonFinite, locate_non_finite
from lockstep.algorithm.update import Update
from lockstep.group.group import Group
from lockstep.ppo.settings import PPOConfig
from lockstep.rollout import Rollout

SHARDS = 4
SHARES = [[(0, 1, 2, 3)], [(0, 1), (2, 3)], [(0, 1), (2,), (3,)]]
DIVERGED = "the weights have diverged: lower ppo.learning_rate"
CASES = {
    "observation": ("observations", (4, 1, 2), math.nan, "the observation of environment 5 is nan at step 4"),
    "first observation": ("observations", (0, 1, 2), math.inf, "the observation of environment 5 is inf before step 1"),
    "last observation": (
        "observations",
        (STEPS, 0, 0),
        math.nan,
        f"the observation of environment 4 is nan at step {STEPS}",
    ),
    "reward": ("rewards", (5, 0), -math.inf, "the reward of environment 4 is -inf at step 6"),
    "estimate": ("values", (5, 0), math.nan, "the critic's estimate for environment 4 is nan at step 5"),
    "log-probability": ("log_probs", (5, 0), math.nan, "the log-probability of environment 4 is nan at step 6"),
}


def rollouts_with(name: str, place: tuple[int, ...], value: float) -> list[Rollout]:
    """Return rollouts of four shards; the third contains `value`."""
    rollouts = rollouts_of(agent_of(), SHARDS)
    getattr(rollouts[2], name)[place] = value
    return rollouts


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_message_names_quantity_environment_and_step(case: str, fused: bool) -> None:
    name, place, value, line = CASES[case]
    advice = "check the environment" if name in ("observations", "rewards") else DIVERGED
    rollouts = rollouts_with(name, place, value)

    def locate(group: Group, shards: Sequence[int]) -> str | None:
        return locate_non_finite([rollouts[shard] for shard in shards], shards, 7, group, fused)

    for shares in [SHARES[0]] if fused else SHARES:
        assert set(on_ranks(shares, locate)) == {f"{line} of iteration 7: {advice}"}


def test_values_in_invalid_rows_may_be_nan() -> None:
    rollouts = rollouts_of(agent_of(), 2)
    for rollout in rollouts:
        rollout.rewards[~rollout.valid] = torch.nan
        rollout.log_probs[~rollout.valid] = torch.nan
        rollout.observations[1:][rollout.terminated] = torch.nan
        rollout.values[1:][rollout.terminated] = torch.nan
    (found,) = on_ranks([(0, 1)], lambda group, shards: locate_non_finite(rollouts, shards, 7, group, False))
    assert found is None


def test_message_names_the_value_that_caused_the_others() -> None:
    rollouts = rollouts_with("observations", (4, 1, 2), math.nan)
    rollouts[2].values[4, 1] = rollouts[2].log_probs[4, 1] = math.nan
    (found,) = on_ranks([(0, 1, 2, 3)], lambda group, shards: locate_non_finite(rollouts, shards, 7, group, False))
    assert str(found).startswith(f"the observation of environment {2 * COUNT + 1} is nan at step 4")


@pytest.mark.parametrize("case", sorted(CASES.keys() - {"last observation"}))
def test_update_raises_the_same_message_on_every_rank(case: str) -> None:
    name, place, value, line = CASES[case]
    rollouts = rollouts_with(name, place, value)

    def train(group: Group, shards: Sequence[int]) -> str:
        with pytest.raises(NonFinite) as caught:
            Update(agent_of(), PPOConfig(epochs=2, minibatches=2), group, shards, SEED)(
                [rollouts[shard] for shard in shards], ITERATION, 0.0
            )
        return str(caught.value)

    for shares in SHARES:
        assert all(message.startswith(f"{line} of iteration {ITERATION}") for message in on_ranks(shares, train))

"""PPO's loss of one part of a minibatch, against numbers computed by hand for a uniform policy over four actions."""

import math
from dataclasses import replace

import pytest
import torch
from tests.watched import agent_of
from torch import Tensor

from lockstep.algorithm.batch import RowScalars
from lockstep.algorithm.loss import Loss, TrainMask
from lockstep.ppo.settings import PPOConfig

CONFIG = PPOConfig(normalize_advantages=False, value_coefficient=0.5)
RATIOS = (1.0, 1.5, 1.5, 100.0)
"""Probability ratios of the four rows. The last row is a reset row."""
KL = 0 + 2 * (0.5 - math.log(1.5))
VALUES = (0.0, 1.0, 2.0, 100.0)
ENTROPY = 3 * math.log(4)


def rows_of() -> Tensor:
    """Return four packed rows. Under uniform probabilities, the log-probability of each action is -log 4."""
    scalars = RowScalars(
        log_probs=torch.tensor([-math.log(4) - math.log(ratio) for ratio in RATIOS], dtype=torch.float64),
        advantages=torch.tensor([1.0, 2.0, -1.0, 100.0], dtype=torch.float64),
        value_targets=torch.tensor([1.0, 1.0, 5.0, -100.0], dtype=torch.float64),
        values=torch.tensor([0.0, 1.0, 1.0, 0.0], dtype=torch.float64),
        weights=torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=torch.float64),
    )
    observations, actions = torch.zeros(4, 3, dtype=torch.float64), torch.tensor([[0.0], [1.0], [2.0], [3.0]]).double()
    return torch.cat([observations, actions, torch.stack(scalars, 1)], 1)


def loss_of(
    config: PPOConfig = CONFIG,
    trained: TrainMask = (True, True),
    mean: float = 0.0,
    scale: float = 1.0,
    entropy: float = 0.1,
    kl_coefficient: float = 0.0,
) -> tuple[float, list[float]]:
    """Return the loss, and the sums of policy loss, value loss, entropy, KL divergence and clipped rows."""
    scalars = torch.tensor([mean, scale, 0.2, entropy, kl_coefficient], dtype=torch.float64)
    values = torch.tensor(VALUES, dtype=torch.float64)
    loss, statistics = Loss(agent_of(), config, trained)(torch.zeros(4, 4).double(), values, rows_of(), scalars)
    return loss.item(), statistics.tolist()


def test_clipped_surrogate_entropy_and_value_loss() -> None:
    # policy: -1·1, then -min(1.5·2, 1.2·2) = -2.4, then -min(1.5·-1, 1.2·-1) = 1.5
    # value:  ½ (0 - 1)², ½ (1 - 1)², ½ (2 - 5)²
    loss, statistics = loss_of()
    assert statistics == pytest.approx([-1 - 2.4 + 1.5, 0.5 + 0 + 4.5, ENTROPY, KL, 2])
    assert loss == pytest.approx(-1.9 - 0.1 * ENTROPY + 0.5 * 5)


def test_normalized_advantages() -> None:
    # advantages minus 1, times 3: 0, 3, -6
    loss, statistics = loss_of(replace(CONFIG, normalize_advantages=True), (True, False), mean=1.0, scale=3.0)
    assert statistics[0] == pytest.approx(0 - 1.2 * 3 + 1.5 * 6)
    assert loss == pytest.approx(statistics[0] - 0.1 * ENTROPY)


def test_penalized_surrogate() -> None:
    loss, statistics = loss_of(replace(CONFIG, surrogate="kl"), kl_coefficient=2.0, entropy=0.0)
    policy_loss = -1 - 1.5 * 2 + 1.5 + 2 * KL
    assert statistics[0] == pytest.approx(policy_loss)
    assert loss == pytest.approx(policy_loss + 0.5 * 5)


def test_clipped_value_loss() -> None:
    # clipped to within ½ of the old values: 0, 1, 1.5; the larger loss of each row counts
    _, statistics = loss_of(replace(CONFIG, value_clip=0.5))
    assert statistics[1] == pytest.approx(0.5 + 0 + 0.5 * 3.5**2)


def test_only_trained_parts_contribute_to_the_loss() -> None:
    loss, statistics = loss_of(trained=(True, False))
    assert (loss, statistics[1]) == (pytest.approx(-1.9 - 0.1 * ENTROPY), 0)
    loss, statistics = loss_of(trained=(False, True))
    assert loss == pytest.approx(2.5)
    assert statistics == [0, pytest.approx(5), 0, 0, 0]

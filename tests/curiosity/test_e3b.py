"""E3B: elliptical bonuses compared with matrix inverses computed at every step."""

import numpy as np
import pytest
import torch
from tests.curiosity.episodic import (
    SPACES,
    check_episodes_are_independent,
    check_trained_parameters,
    network_outputs,
    split_steps,
)
from tests.curiosity.episodic import steps_of as rollouts_of
from tests.curiosity.rollouts import VECTOR, method_of
from torch import Tensor

from lockstep.curiosity import e3b
from lockstep.curiosity.curiosity import Transitions
from lockstep.curiosity.e3b import E3B, bonuses
from lockstep.group.group import ordered_sum

COUNT, LENGTHS = 3, [9, 14, 8]


class Paper:
    """Algorithm 1 of the paper for single environments, with an inverse at every step and with its rank-1 updates."""

    def __init__(self, method: E3B) -> None:
        self.method, self.size = method, method.config.feature_size
        self.sums, self.inverses = {}, {}

    def reward(self, steps: Transitions) -> np.ndarray:
        rows = network_outputs(self.method, self.method.inverse.features, steps)
        bonuses, ridge = np.full(steps.valid.shape, np.nan), self.method.config.ridge
        for environment in range(steps.valid.shape[1]):
            total = self.sums.get(environment, ridge * np.eye(self.size))
            inverse = self.inverses.get(environment, np.eye(self.size) / ridge)
            for t, valid in enumerate(steps.valid[:, environment].tolist()):
                features, next_features = rows[t : t + 2, environment]
                if not valid:
                    total, inverse = ridge * np.eye(self.size), np.eye(self.size) / ridge
                    continue
                total = total + np.outer(features, features)
                product = inverse @ features
                inverse = inverse - np.outer(product, product) / (1 + features @ product)
                direct = torch.linalg.inv(torch.from_numpy(total)).numpy()
                bonuses[t, environment] = next_features @ direct @ next_features
            np.testing.assert_allclose(inverse, np.linalg.inv(total), rtol=1e-8, atol=1e-9)
            self.sums[environment], self.inverses[environment] = total, inverse
        return bonuses


def e3b_of(spaces: object = VECTOR, dtype: torch.dtype = torch.float64, **settings: object) -> E3B:
    method = method_of("e3b", spaces, dtype=dtype, **settings)
    assert isinstance(method, E3B)
    return method


def reward(method: E3B, steps: Transitions, carried: dict[str, Tensor]) -> Tensor:
    (found,) = method.reward([steps], [carried], ordered_sum)
    return found


@pytest.mark.parametrize("spaces", SPACES)
@pytest.mark.parametrize("ridge", [0.1, 3.0])
def test_rewards_equal_the_algorithm_of_the_paper(spaces: str, ridge: float) -> None:
    method = e3b_of(SPACES[spaces], ridge=ridge)
    paper, carried = Paper(method), method.initial_state(COUNT)
    for steps in rollouts_of(method, SPACES[spaces], COUNT, LENGTHS):
        found, expected = reward(method, steps, carried), paper.reward(steps)
        assert found.shape == steps.valid.shape
        np.testing.assert_allclose(found[steps.valid], expected[steps.valid], rtol=1e-8)
        for environment, total in paper.sums.items():
            np.testing.assert_allclose(carried["ellipsoid"][environment], total, rtol=1e-10, atol=1e-12)


def test_block_size_does_not_change_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    method = e3b_of(feature_size=4)
    rollouts = list(rollouts_of(method, VECTOR, 2, [70, 64, 63]))
    for steps in rollouts:
        steps.valid[:, 1] = True  # one that never ends
    paper, state = Paper(method), method.initial_state(2)
    found = [reward(method, steps, state) for steps in rollouts]
    for found_rewards, steps in zip(found, rollouts, strict=True):
        np.testing.assert_allclose(found_rewards[steps.valid], paper.reward(steps)[steps.valid], rtol=1e-8)
    monkeypatch.setattr(e3b, "_BLOCK", 1)
    state = method.initial_state(2)
    for found_rewards, steps in zip(found, rollouts, strict=True):
        np.testing.assert_allclose(found_rewards, reward(method, steps, state), rtol=1e-9)


def test_bonuses_computed_by_hand() -> None:
    # λ = 1: C is 1 + 1, 1 + 1 + 4, then of a new episode 1 + 9; row 3 is the first of it
    rows = torch.tensor([[1.0, 2, 4, 3, 5]], dtype=torch.float64)[..., None]
    ellipsoid = torch.ones(1, 1, 1, dtype=torch.float64)
    found = bonuses(rows, torch.tensor([[0, 0, 0, 1, 1]]), ellipsoid, 1.0)
    assert found[0].tolist() == pytest.approx([1, 4 / 2, 16 / 6, 9, 25 / 10], rel=1e-12)
    assert ellipsoid.item() == 10  # without the last row, which begins the next rollout


def test_episodes_continue_across_rollouts() -> None:
    method = e3b_of()
    (steps,) = rollouts_of(method, VECTOR, COUNT, [26])
    one, two = method.initial_state(COUNT), method.initial_state(COUNT)
    joint_rewards = reward(method, steps, one)
    separate_rewards = [reward(method, part, two) for part in split_steps(steps, [13, 13])]
    np.testing.assert_allclose(joint_rewards, torch.cat(separate_rewards), rtol=1e-10)
    np.testing.assert_allclose(one["ellipsoid"], two["ellipsoid"], rtol=1e-12, atol=1e-14)


def test_rewards_do_not_depend_on_earlier_episodes() -> None:
    method = e3b_of()
    check_episodes_are_independent(method, lambda steps, carried: reward(method, steps, carried))


def test_initial_ellipsoid_is_the_ridge_and_is_updated_in_place() -> None:
    method = e3b_of(ridge=0.3)
    (ellipsoid,) = method.initial_state(COUNT).values()
    assert torch.equal(ellipsoid, 0.3 * torch.eye(6, dtype=torch.float64).expand(COUNT, 6, 6))
    place = ellipsoid.data_ptr()
    for steps in rollouts_of(method, VECTOR, COUNT, LENGTHS):
        reward(method, steps, {"ellipsoid": ellipsoid})
    assert ellipsoid.data_ptr() == place
    assert ellipsoid.shape == (COUNT, 6, 6)


def test_ellipsoid_is_reset_if_the_last_row_is_a_reset_row() -> None:
    method = e3b_of()
    (steps,) = rollouts_of(method, VECTOR, COUNT, [8])
    steps.valid[-1] = False
    carried = method.initial_state(COUNT)
    reward(method, steps, carried)
    assert torch.equal(carried["ellipsoid"], method.initial_state(COUNT)["ellipsoid"])


def test_rewards_of_a_repeated_observation_decrease() -> None:
    method = e3b_of(dtype=torch.float32)
    (steps,) = rollouts_of(method, VECTOR, 1, [200])
    steps.valid[:] = True
    steps.features[:] = steps.features[0].clone()
    carried = method.initial_state(1)
    found = reward(method, steps, carried)[:, 0]
    assert found.dtype == torch.float32
    assert carried["ellipsoid"].dtype == torch.float64
    # n times the same φ: b = a / (1 + n a) with a = |φ|² / λ, which is 1 / n for many
    assert found[-1].item() == pytest.approx(1 / 200, rel=0.01)
    assert (found.diff() < 0).all()


def test_features_on_different_scales() -> None:
    """Features on scales from 1e-3 to 1e3, and a last observation far outside of their ellipsoid."""
    random = torch.Generator().manual_seed(1)
    rows = torch.randn(1, 10_001, 3, generator=random, dtype=torch.float64) * torch.tensor([1e3, 1.0, 1e-3])
    rows[0, -1] = torch.tensor([0, 0, 1.0])
    ellipsoid = 0.1 * torch.eye(3, dtype=torch.float64)[None]
    found = bonuses(rows, torch.zeros(1, 10_001, dtype=torch.int64), ellipsoid, 0.1)
    total = 0.1 * torch.eye(3, dtype=torch.float64) + rows[0, :-1].T @ rows[0, :-1]
    assert found[0, -1].item() == pytest.approx(torch.linalg.inv(total)[2, 2].item(), rel=1e-8)


def test_shards_are_independent() -> None:
    method = e3b_of()
    steps = [next(rollouts_of(method, VECTOR, COUNT, [12], shard)) for shard in (0, 1)]
    joint_rewards = method.reward(steps, [method.initial_state(COUNT) for _ in steps], ordered_sum)
    for shard_steps, found in zip(steps, joint_rewards, strict=True):
        assert torch.equal(found, reward(method, shard_steps, method.initial_state(COUNT)))


@pytest.mark.parametrize("spaces", SPACES)
def test_only_the_inverse_model_is_trained(spaces: str) -> None:
    method = e3b_of(SPACES[spaces])
    (steps,) = rollouts_of(method, SPACES[spaces], COUNT, [8])
    check_trained_parameters(method, steps)
    assert {name.split(".")[0] for name in method.trained_parameters()} == {"inverse"}
    assert method.losses == ("inverse_loss",)


def test_non_finite_observations_give_nan_rewards() -> None:
    method = e3b_of()
    (steps,) = rollouts_of(method, VECTOR, COUNT, [8])
    steps.features[3:] = torch.nan
    assert torch.isnan(reward(method, steps, method.initial_state(COUNT))[3:]).all()

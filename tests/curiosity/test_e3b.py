"""Elliptical bonuses: against inverses, step by step."""

import numpy as np
import pytest
import torch
from tests.curiosity.episodic import SPACES, embedded, forgets, is_trained_alone, parted
from tests.curiosity.episodic import steps_of as rollouts_of
from tests.curiosity.rollouts import VECTOR, method_of
from torch import Tensor

from lockstep.curiosity import e3b
from lockstep.curiosity.curiosity import Transitions
from lockstep.curiosity.e3b import E3B, bonuses
from lockstep.group.group import ordered_sum

COUNT, LENGTHS = 3, [9, 14, 8]


class Paper:
    """Algorithm 1 with an inverse at every step, for one environment after the other; and by its rank-1 updates."""

    def __init__(self, method: E3B) -> None:
        self.method, self.size = method, method.config.feature_size
        self.sums, self.inverses = {}, {}

    def reward(self, steps: Transitions) -> np.ndarray:
        rows = embedded(self.method, self.method.inverse.features, steps)
        found, ridge = np.full(steps.valid.shape, np.nan), self.method.config.ridge
        for environment in range(steps.valid.shape[1]):
            total = self.sums.get(environment, ridge * np.eye(self.size))
            inverse = self.inverses.get(environment, np.eye(self.size) / ridge)
            for t, valid in enumerate(steps.valid[:, environment].tolist()):
                own, then = rows[t : t + 2, environment]
                if not valid:
                    total, inverse = ridge * np.eye(self.size), np.eye(self.size) / ridge
                    continue
                total = total + np.outer(own, own)
                moved = inverse @ own
                inverse = inverse - np.outer(moved, moved) / (1 + own @ moved)
                direct = torch.linalg.inv(torch.from_numpy(total)).numpy()
                found[t, environment] = then @ direct @ then
            np.testing.assert_allclose(inverse, np.linalg.inv(total), rtol=1e-8, atol=1e-9)
            self.sums[environment], self.inverses[environment] = total, inverse
        return found


def e3b_of(spaces: object = VECTOR, dtype: torch.dtype = torch.float64, **settings: object) -> E3B:
    method = method_of("e3b", spaces, dtype=dtype, **settings)
    assert isinstance(method, E3B)
    return method


def reward(method: E3B, steps: Transitions, carried: dict[str, Tensor]) -> Tensor:
    (found,) = method.reward([steps], [carried], ordered_sum)
    return found


@pytest.mark.parametrize("spaces", SPACES)
@pytest.mark.parametrize("ridge", [0.1, 3.0])
def test_equals_the_paper(spaces: str, ridge: float) -> None:
    method = e3b_of(SPACES[spaces], ridge=ridge)
    paper, carried = Paper(method), method.initial_state(COUNT)
    for steps in rollouts_of(method, SPACES[spaces], COUNT, LENGTHS):
        found, expected = reward(method, steps, carried), paper.reward(steps)
        assert found.shape == steps.valid.shape
        np.testing.assert_allclose(found[steps.valid], expected[steps.valid], rtol=1e-8)
        for environment, total in paper.sums.items():
            np.testing.assert_allclose(carried["ellipsoid"][environment], total, rtol=1e-10, atol=1e-12)


def test_several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    method = e3b_of(feature_size=4)
    rollouts = list(rollouts_of(method, VECTOR, 2, [70, 64, 63]))
    for steps in rollouts:
        steps.valid[:, 1] = True  # one that never ends
    paper, kept = Paper(method), method.initial_state(2)
    found = [reward(method, steps, kept) for steps in rollouts]
    for own, steps in zip(found, rollouts, strict=True):
        np.testing.assert_allclose(own[steps.valid], paper.reward(steps)[steps.valid], rtol=1e-8)
    monkeypatch.setattr(e3b, "_BLOCK", 1)
    kept = method.initial_state(2)
    for own, steps in zip(found, rollouts, strict=True):
        np.testing.assert_allclose(own, reward(method, steps, kept), rtol=1e-9)


def test_by_hand() -> None:
    # λ = 1: C is 1 + 1, 1 + 1 + 4, then of a new episode 1 + 9; row 3 is the first of it
    rows = torch.tensor([[1.0, 2, 4, 3, 5]], dtype=torch.float64)[..., None]
    ellipsoid = torch.ones(1, 1, 1, dtype=torch.float64)
    found = bonuses(rows, torch.tensor([[0, 0, 0, 1, 1]]), ellipsoid, 1.0)
    assert found[0].tolist() == pytest.approx([1, 4 / 2, 16 / 6, 9, 25 / 10], rel=1e-12)
    assert ellipsoid.item() == 10  # without the last row, which begins the next rollout


def test_an_episode_in_two_rollouts_is_one_episode() -> None:
    method = e3b_of()
    (whole,) = rollouts_of(method, VECTOR, COUNT, [26])
    one, two = method.initial_state(COUNT), method.initial_state(COUNT)
    together = reward(method, whole, one)
    apart = [reward(method, part, two) for part in parted(whole, [13, 13])]
    np.testing.assert_allclose(together, torch.cat(apart), rtol=1e-10)
    np.testing.assert_allclose(one["ellipsoid"], two["ellipsoid"], rtol=1e-12, atol=1e-14)


def test_is_forgotten_with_the_episode() -> None:
    method = e3b_of()
    forgets(method, lambda steps, carried: reward(method, steps, carried))


def test_what_is_carried_begins_as_the_ridge_and_keeps_its_place() -> None:
    method = e3b_of(ridge=0.3)
    (ellipsoid,) = method.initial_state(COUNT).values()
    assert torch.equal(ellipsoid, 0.3 * torch.eye(6, dtype=torch.float64).expand(COUNT, 6, 6))
    place = ellipsoid.data_ptr()
    for steps in rollouts_of(method, VECTOR, COUNT, LENGTHS):
        reward(method, steps, {"ellipsoid": ellipsoid})
    assert ellipsoid.data_ptr() == place
    assert ellipsoid.shape == (COUNT, 6, 6)


def test_begins_anew_where_the_last_row_is_a_reset_row() -> None:
    method = e3b_of()
    (steps,) = rollouts_of(method, VECTOR, COUNT, [8])
    steps.valid[-1] = False
    carried = method.initial_state(COUNT)
    reward(method, steps, carried)
    assert torch.equal(carried["ellipsoid"], method.initial_state(COUNT)["ellipsoid"])


def test_less_and_less_for_the_same() -> None:
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
    """The ellipsoid of 1e4 observations that hardly move, and what leaves it."""
    random = torch.Generator().manual_seed(1)
    rows = torch.randn(1, 10_001, 3, generator=random, dtype=torch.float64) * torch.tensor([1e3, 1.0, 1e-3])
    rows[0, -1] = torch.tensor([0, 0, 1.0])
    ellipsoid = 0.1 * torch.eye(3, dtype=torch.float64)[None]
    found = bonuses(rows, torch.zeros(1, 10_001, dtype=torch.int64), ellipsoid, 0.1)
    total = 0.1 * torch.eye(3, dtype=torch.float64) + rows[0, :-1].T @ rows[0, :-1]
    assert found[0, -1].item() == pytest.approx(torch.linalg.inv(total)[2, 2].item(), rel=1e-8)


def test_shards_have_nothing_to_do_with_each_other() -> None:
    method = e3b_of()
    steps = [next(rollouts_of(method, VECTOR, COUNT, [12], shard)) for shard in (0, 1)]
    together = method.reward(steps, [method.initial_state(COUNT) for _ in steps], ordered_sum)
    for own, found in zip(steps, together, strict=True):
        assert torch.equal(found, reward(method, own, method.initial_state(COUNT)))


@pytest.mark.parametrize("spaces", SPACES)
def test_trains_what_is_to_be_trained(spaces: str) -> None:
    method = e3b_of(SPACES[spaces])
    (steps,) = rollouts_of(method, SPACES[spaces], COUNT, [8])
    is_trained_alone(method, steps)
    assert {name.split(".")[0] for name in method.parts()} == {"inverse"}
    assert method.losses == ("inverse_loss",)


def test_what_is_not_finite_does_not_stop_it() -> None:
    method = e3b_of()
    (steps,) = rollouts_of(method, VECTOR, COUNT, [8])
    steps.features[3:] = torch.nan
    assert torch.isnan(reward(method, steps, method.initial_state(COUNT))[3:]).all()

"""RE3: distances to nearest neighbors, computed by hand and by brute force."""

import math

import numpy as np
import pytest
import torch
from tests.curiosity.rollouts import IMAGES, ONLY_IMAGES, VECTOR, method_of, observed_steps, rewards, rollout_of
from torch import Tensor

from lockstep.curiosity.re3 import _MOST, _stride, distances
from lockstep.envs.spaces import Spaces

LINE = torch.tensor([[0.0], [1], [3], [7], [7.5]], dtype=torch.float64)


def all_valid(count: int) -> Tensor:
    return torch.ones(count, dtype=torch.bool)


def by_brute_force(rows: np.ndarray, valid: np.ndarray, neighbors: int, stride: int) -> np.ndarray:
    found, others = [], [other for other in range(0, len(rows), stride) if valid[other]]
    for place, row in enumerate(rows):
        near = sorted(np.linalg.norm(row - rows[other]) for other in others if other != place)
        found.append(near[neighbors - 1])
    return np.array(found)


@pytest.mark.parametrize(
    ("neighbors", "expected"),
    [(1, [1, 1, 2, 0.5, 0.5]), (2, [3, 2, 3, 4, 4.5]), (4, [7.5, 6.5, 4.5, 7, 7.5]), (9, [7.5, 6.5, 4.5, 7, 7.5])],
)
def test_distances_computed_by_hand(neighbors: int, expected: list[float]) -> None:
    assert distances(LINE, all_valid(5), neighbors, 1).tolist() == pytest.approx(expected, abs=1e-12)


def test_invalid_rows_are_no_neighbors() -> None:
    valid = torch.tensor([True, False, True, False, True])
    found = distances(LINE, valid, 1, 1)
    assert found[valid].tolist() == pytest.approx([3, 3, 4.5])


def test_stride_selects_every_second_row_as_neighbor() -> None:
    assert distances(LINE, all_valid(5), 1, 2).tolist() == pytest.approx([3, 1, 3, 0.5, 4.5])


@pytest.mark.parametrize("valid", [[], [2]])
def test_distances_without_neighbors_are_0(valid: list[int]) -> None:
    counted = torch.zeros(5, dtype=torch.bool)
    counted[valid] = True
    assert distances(LINE, counted, 3, 1).tolist() == [0] * 5


def test_repeated_rows_have_distance_0() -> None:
    rows = torch.from_numpy(np.random.default_rng(1).normal(100, 1, (40, 6))).repeat(4, 1)
    assert distances(rows, all_valid(160), 3, 1).max() < 1e-5
    assert distances(rows, all_valid(160), 4, 1).min() > 0.1


@pytest.mark.parametrize(("steps", "count"), [(9, 4), (7, 30), (1, 300)])
@pytest.mark.parametrize("spaces", [VECTOR, IMAGES, ONLY_IMAGES])
def test_rewards_equal_brute_force(spaces: Spaces, steps: int, count: int) -> None:
    method = method_of("re3", spaces, neighbors=5)
    transitions = observed_steps(method, spaces, steps, count)
    (found,) = rewards(method, transitions)
    rows = method.embed(method.encoder, transitions)[1:].flatten(0, 1).numpy()
    expected = np.log(1 + by_brute_force(rows, transitions.valid.flatten().numpy(), 5, 1)).reshape(steps, count)
    np.testing.assert_allclose(found[transitions.valid], expected[transitions.valid.numpy()], rtol=1e-10)


def test_rewards_do_not_depend_on_reset_rows() -> None:
    method = method_of("re3", VECTOR, neighbors=2)
    steps = observed_steps(method, VECTOR)
    assert not steps.valid.all()
    (before,) = rewards(method, steps)
    steps.features = steps.features.clone()
    steps.features[1:][~steps.valid] = steps.features[1, 0].clone()  # as near as can be
    steps.features[0] = steps.features[1]  # nor is what the rollout began with
    (after,) = rewards(method, steps)
    assert torch.equal(before[steps.valid], after[steps.valid])


def test_shards_are_independent() -> None:
    method = method_of("re3", VECTOR, neighbors=2)
    first, second = (observed_steps(method, VECTOR, name=name) for name in "ab")
    (one,), (two,), both = rewards(method, first), rewards(method, second), rewards(method, first, second)
    assert torch.equal(both[0], one)
    assert torch.equal(both[1], two)


@pytest.mark.parametrize(
    ("steps", "count"), [(2048, 1), (128, 16), (256, 16), (1024, 8), (256, 1024), (4096, 7), (3, 1000), (2, 30030)]
)
def test_neighbors_in_a_large_rollout_are_sampled_from_all_environments(steps: int, count: int) -> None:
    stride = _stride(steps, count)
    places = np.arange(0, steps * count, stride)
    assert (stride == 1) == (steps * count <= _MOST)
    assert min(_MOST, steps * count) / 4 < len(places) <= _MOST
    assert math.gcd(stride, count) == 1
    assert len(set(places % count)) == min(count, len(places))


def test_rewards_of_a_large_rollout_equal_brute_force() -> None:
    method = method_of("re3", VECTOR, neighbors=3)
    steps = observed_steps(method, VECTOR, 300, 8)
    rows = method.embed(method.encoder, steps)[1:].flatten(0, 1).numpy()
    (found,) = rewards(method, steps)
    sample = np.r_[0:40, 1990:2030]  # neighbors and others
    expected = []
    for place in sample:
        near = np.linalg.norm(rows[place] - rows[::3], axis=1)
        near[~steps.valid.flatten().numpy()[::3]] = np.inf
        if place % 3 == 0:
            near[place // 3] = np.inf
        expected.append(np.log(1 + np.sort(near)[2]))
    counted = steps.valid.flatten().numpy()[sample]
    np.testing.assert_allclose(found.flatten().numpy()[sample][counted], np.array(expected)[counted], rtol=1e-9)


def test_no_parameters_are_trained() -> None:
    method = method_of("re3", VECTOR)
    assert (method.losses, method.weights, method.trained_parameters()) == ((), (), {})
    assert method.columns(method.transitions(rollout_of(VECTOR, 9, 4))).shape == (36, 0)
    with pytest.raises(NotImplementedError, match="RE3 has no loss"):
        method.loss(torch.zeros(3, 0), None)


def test_distant_observation_has_the_largest_reward() -> None:
    method, rollout = method_of("re3", VECTOR), rollout_of(VECTOR, 40, 4)
    rollout.valid.fill_(True)
    rollout.observations[8, 2] += 30
    method.observe([rollout], lambda rows: rows.sum(0))
    (found,) = rewards(method, method.transitions(rollout))
    assert found.flatten().argmax() == 7 * 4 + 2
    assert found[7, 2] > 2 * found.median()

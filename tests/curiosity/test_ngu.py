"""NGU: comparison with the algorithm of the paper, step by step."""

import math

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
from tests.curiosity.rollouts import VECTOR, image_pairs, method_of
from torch import Tensor

from lockstep.curiosity import ngu
from lockstep.curiosity.curiosity import Transitions
from lockstep.curiosity.ngu import NGU, nearest, windows
from lockstep.group.group import ordered_sum

COUNT, LENGTHS = 3, [9, 14, 8]
RMS = 1e-8
"""What `RunningStatistics.std` adds to a variance."""


class Paper:
    """Algorithm 1 and equation 1 of the paper, for single environments."""

    def __init__(self, method: NGU) -> None:
        self.method, self.memories = method, {}
        self.all_distances, self.all_errors = [], []

    def reward(self, shards: list[Transitions]) -> list[np.ndarray]:
        found = {}
        for shard, steps in enumerate(shards):
            networks = self.method.inverse.features, self.method.target, self.method.predictor
            rows, targets, predicted = (network_outputs(self.method, network, steps) for network in networks)
            for environment in range(steps.valid.shape[1]):
                memory = self.memories.setdefault((shard, environment), [])
                for t, valid in enumerate(steps.valid[:, environment].tolist()):
                    memory.append(rows[t, environment])
                    if not valid:
                        memory.clear()
                        continue
                    error = ((targets - predicted)[t + 1, environment] ** 2).mean()
                    self.all_errors.append(error)
                    found[shard, t, environment] = self.nearest(rows[t + 1, environment], memory), error
        mean, errors = np.mean(self.all_distances or [1]), np.array(self.all_errors)
        rewards = [np.zeros(steps.valid.shape) for steps in shards]
        for (shard, *place), (distances, error) in found.items():
            alpha = 1 + (error - errors.mean()) / math.sqrt(errors.var() + RMS)
            rewards[shard][tuple(place)] = self.episodic(distances, mean) * min(max(alpha, 1), 5)
        return rewards

    def nearest(self, embedding: np.ndarray, memory: list[np.ndarray]) -> list[float]:
        remembered = memory[-self.method.config.capacity :]
        distances = sorted(((embedding - other) ** 2).sum() for other in remembered)[: self.method.config.neighbors]
        if len(distances) < self.method.config.neighbors:
            return []
        self.all_distances += distances
        return distances

    def episodic(self, distances: list[float], mean: float) -> float:
        if not distances:
            return 0
        kernels = [1e-4 / (max(distance / mean - 0.008, 0) + 1e-4) for distance in distances]
        similarity = math.sqrt(sum(kernels)) + 0.001
        return 0 if similarity > 8 else 1 / similarity


def ngu_of(spaces: object = VECTOR, dtype: torch.dtype = torch.float64, **settings: object) -> NGU:
    method = method_of("ngu", spaces, dtype=dtype, **{"neighbors": 2, "capacity": 6, **settings})
    assert isinstance(method, NGU)
    return method


def zero_sum(parts: Tensor) -> Tensor:
    """Reduction that leaves running statistics unchanged: a sum of zeros."""
    return torch.zeros_like(parts[0])


class Parts:
    """Rows that ranks contribute to a sum, in rank order."""

    def __init__(self) -> None:
        self.found: list[Tensor] = []

    def gather(self, parts: Tensor) -> Tensor:
        self.found += parts
        return parts[0]

    def total(self, parts: Tensor) -> Tensor:
        return ordered_sum(torch.stack(self.found))


def with_fixed_statistics(method: NGU) -> NGU:
    """Set the running statistics to fixed values."""
    for name, mean in (("distances", 0.7), ("errors", 0.05)):
        one = torch.ones(1, dtype=torch.float64)
        method.statistics[name].load({"count": 9 * one, "mean": mean * one, "squares": 0.01 * one})
    return method


@pytest.mark.parametrize("spaces", SPACES)
def test_rewards_equal_the_algorithm_of_the_paper(spaces: str) -> None:
    method = ngu_of(SPACES[spaces])
    shards = [list(rollouts_of(method, SPACES[spaces], COUNT, LENGTHS, shard)) for shard in (0, 1)]
    paper, carried = Paper(method), [method.initial_state(COUNT) for _ in shards]
    for steps in zip(*shards, strict=True):
        expected = paper.reward(list(steps))
        found = method.reward(steps, carried, ordered_sum)
        for shard_steps, rewards, expected_rewards in zip(steps, found, expected, strict=True):
            assert rewards.dtype == torch.float64
            assert 0.3 < (rewards > 0).double().mean() < 0.9
            np.testing.assert_allclose(rewards[shard_steps.valid], expected_rewards[shard_steps.valid], rtol=1e-9)
    distances, errors = method.statistics["distances"], method.statistics["errors"]
    assert distances.mean.item() == pytest.approx(np.mean(paper.all_distances), rel=1e-12)
    assert distances.count.item() == len(paper.all_distances) / method.config.neighbors
    assert errors.mean.item() == pytest.approx(np.mean(paper.all_errors), rel=1e-12)
    assert errors.squares.item() == pytest.approx(np.var(paper.all_errors) * len(paper.all_errors), rel=1e-9)


@pytest.mark.parametrize(("neighbors", "capacity"), [(1, 1), (3, 3), (1, 40), (5, 40), (80, 100)])
def test_rewards_for_several_numbers_of_neighbors(neighbors: int, capacity: int) -> None:
    """More than 63 neighbors at the same place have a similarity above the limit, so the reward is 0."""
    method = ngu_of(neighbors=neighbors, capacity=capacity)
    paper, carried = Paper(method), [method.initial_state(COUNT)]
    for steps in rollouts_of(method, VECTOR, COUNT, [30, 90]):
        steps.valid[:, 1:] = True
        steps.features[:, 1] *= 1e-3
        (found,) = method.reward([steps], carried, ordered_sum)
        (expected,) = paper.reward([steps])
        np.testing.assert_allclose(found[steps.valid], expected[steps.valid], rtol=1e-9)
    assert (found[-5:, 1] == 0).all() == (neighbors == 80)


@pytest.mark.parametrize("scores", [1, 200, 10**9])
@pytest.mark.parametrize("block", [1, 4, 64])
def test_block_size_does_not_change_rewards(block: int, scores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    method = with_fixed_statistics(ngu_of())
    steps = list(rollouts_of(method, VECTOR, COUNT, LENGTHS))
    expected = rewards_of(method, steps)
    monkeypatch.setattr(ngu, "_BLOCK", block)
    monkeypatch.setattr(ngu, "_SCORES", scores)
    np.testing.assert_allclose(rewards_of(method, steps), expected, rtol=1e-11)


def rewards_of(method: NGU, rollouts: list[Transitions]) -> Tensor:
    """Return the rewards of consecutive rollouts, with unchanged running statistics."""
    carried = method.initial_state(COUNT)
    return torch.cat([method.reward([steps], [carried], zero_sum)[0] for steps in rollouts])


def test_nearest_distances_computed_by_hand() -> None:
    # two rows are carried, the first of which is not of this episode; row 3 begins the next one
    rows = torch.tensor([[50.0, 0, 3, 4, 9, 9, 8]], dtype=torch.float64)[..., None]
    valid = torch.tensor([True, True, False, True])[:, None]
    first = windows(valid, torch.tensor([1]), held=2, capacity=2)
    assert first.tolist() == [[1, 1, 2, 5, 5]]
    # row 1 (4): carried 0 and row 0 (3); row 2 (9): rows 0 and 1; row 4 (8): one neighbor only
    found = nearest(rows, first, 2)[0].tolist()
    assert found[:2] == [[1, 16], [25, 36]]
    assert nearest(rows, first, 1)[0].flatten().tolist()[3] == 1


def test_rewards_computed_by_hand() -> None:
    method = with_fixed_statistics(
        ngu_of()
    )  # errors: mean 0.05, standard deviation √(0.01 / 9 + 1e-8); distances: 0.7 on average
    distances = torch.tensor([[[0.07, 0.7], [0, 0.0056], [0.07, 0.7], [0.07, 0.7]]], dtype=torch.float64)
    errors = torch.tensor([[0.05, 0.01, 0.05 + 2 * math.sqrt(0.01 / 9 + 1e-8), 9.0]], dtype=torch.float64)
    found = method._combine(distances, torch.ones(1, 4, dtype=torch.bool), errors)
    far = 1 / (math.sqrt(1e-4 / 0.0921 + 1e-4 / 0.9921) + 0.001)
    near = 1 / (math.sqrt(2) + 0.001)
    assert found[0].tolist() == pytest.approx([far, near, 3 * far, 5 * far], rel=1e-12)
    assert far == pytest.approx(28.211, rel=1e-4)


def test_episodes_continue_across_rollouts() -> None:
    method = with_fixed_statistics(ngu_of(capacity=20))
    (steps,) = rollouts_of(method, VECTOR, COUNT, [26])
    carried = [method.initial_state(COUNT), method.initial_state(COUNT)]
    (joint_rewards,) = method.reward([steps], carried[:1], zero_sum)
    separate_rewards = [method.reward([part], carried[1:], zero_sum)[0] for part in split_steps(steps, [13, 13])]
    np.testing.assert_allclose(joint_rewards, torch.cat(separate_rewards), rtol=1e-10)
    assert joint_rewards[13:].count_nonzero() > 20
    one, two = carried
    assert torch.equal(one["filled"], two["filled"])
    assert one["filled"].max() > 5
    for one_memory, two_memory, filled in zip(one["memory"], two["memory"], one["filled"].tolist(), strict=True):
        np.testing.assert_allclose(one_memory[20 - filled :], two_memory[20 - filled :], rtol=1e-12, atol=1e-14)


def test_memory_is_updated_in_place() -> None:
    method = ngu_of()
    carried = method.initial_state(COUNT)
    before = {name: (tensor.data_ptr(), tensor.shape, tensor.dtype) for name, tensor in carried.items()}
    for steps in rollouts_of(method, VECTOR, COUNT, LENGTHS):
        method.reward([steps], [carried], ordered_sum)
        assert before == {name: (tensor.data_ptr(), tensor.shape, tensor.dtype) for name, tensor in carried.items()}
    assert before["memory"][1:] == ((COUNT, 6, 6), torch.float64)


def test_rewards_do_not_depend_on_earlier_episodes() -> None:
    method = with_fixed_statistics(ngu_of())
    check_episodes_are_independent(method, lambda steps, carried: method.reward([steps], [carried], zero_sum)[0])


def test_rewards_are_0_until_there_are_enough_neighbors() -> None:
    method = with_fixed_statistics(ngu_of(neighbors=3, capacity=8))
    (steps,) = rollouts_of(method, VECTOR, 1, [12])
    steps.valid[:] = True
    steps.valid[5] = False  # row 6 begins an episode; its first reward is that of row 9, when 6, 7 and 8 are known
    (found,) = method.reward([steps], [method.initial_state(1)], zero_sum)
    assert (found[:, 0] > 0).tolist() == [False] * 2 + [True] * 3 + [False] * 3 + [True] * 4


def test_first_observation_of_an_episode_is_in_the_memory() -> None:
    method = with_fixed_statistics(ngu_of(neighbors=1))
    (steps,) = rollouts_of(method, VECTOR, 1, [6])
    steps.valid[:] = True
    steps.features[4] = steps.features[0]
    (found,) = method.reward([steps], [method.initial_state(1)], zero_sum)
    errors = method.errors(steps)
    alpha = 1 + (errors - method.statistics["errors"].mean) / method.statistics["errors"].std
    assert found[3].item() == pytest.approx(alpha[3].clamp(1, 5).item() / 1.001, rel=1e-9)
    assert found[0] > 0


def test_bits_do_not_depend_on_the_number_of_ranks() -> None:
    rollouts = [list(rollouts_of(ngu_of(), VECTOR, COUNT, LENGTHS, shard)) for shard in (0, 1)]
    method, carried = ngu_of(), [ngu_of().initial_state(COUNT) for _ in rollouts]
    ranks, rank_states = [ngu_of(), ngu_of()], [ngu_of().initial_state(COUNT) for _ in rollouts]
    for steps in zip(*rollouts, strict=True):
        expected, parts = method.reward(steps, carried, ordered_sum), Parts()
        for rank, rank_method in enumerate(ranks):  # for their parts alone
            copy = {name: tensor.clone() for name, tensor in rank_states[rank].items()}
            state = {name: statistics.state() for name, statistics in rank_method.statistics.items()}
            rank_method.reward([steps[rank]], [copy], parts.gather)
            for name, statistics in rank_method.statistics.items():
                statistics.load(state[name])
            rank_method.refresh()
        for rank, rank_method in enumerate(ranks):
            (found,) = rank_method.reward([steps[rank]], [rank_states[rank]], parts.total)
            assert torch.equal(found, expected[rank])
    for rank_method in ranks:
        for name in ("distances", "errors"):
            assert torch.equal(rank_method.statistics[name].mean, method.statistics[name].mean)
            assert torch.equal(rank_method.statistics[name].squares, method.statistics[name].squares)


@pytest.mark.parametrize("spaces", SPACES)
def test_only_inverse_model_and_predictor_are_trained(spaces: str) -> None:
    method = ngu_of(SPACES[spaces])
    (steps,) = rollouts_of(method, SPACES[spaces], COUNT, [8])
    check_trained_parameters(method, steps)
    assert not any(parameter.requires_grad for parameter in method.target.parameters())
    assert {name.split(".")[0] for name in method.trained_parameters()} == {"inverse", "predictor"}
    assert method.losses == ("inverse_loss", "rnd_loss")


def test_losses_equal_those_of_inverse_model_and_predictor() -> None:
    spaces = SPACES["vectors and images"]
    method = ngu_of(spaces)
    (steps,) = rollouts_of(method, spaces, COUNT, [8])
    inverse, distilled = method.loss(method.columns(steps), image_pairs(steps)).detach().unbind(1)
    np.testing.assert_allclose(distilled.view(8, COUNT), method.errors(steps), rtol=1e-9)
    row = 4 * COUNT + 1  # step 4 of environment 1
    rows = torch.from_numpy(network_outputs(method, method.inverse.features, steps))
    logits = method.inverse.guess(torch.cat([rows[4, 1], rows[5, 1]])).detach()
    chosen = steps.actions[4, 1].argmax()
    assert inverse[row].item() == pytest.approx((logits.logsumexp(0) - logits[chosen]).item(), rel=1e-9)


def test_inverse_loss_vanishes_if_observations_contain_the_action() -> None:
    method = ngu_of()
    (steps,) = rollouts_of(method, VECTOR, 4, [64])
    steps.features[..., 0] = 0
    steps.features[1:, :, 0] = steps.actions.argmax(-1) - 1.5
    columns = method.columns(steps)
    for _ in range(300):
        losses = method.loss(columns, None).mean(0)
        for parameter in method.trained_parameters().values():
            parameter.grad = None
        losses.sum().backward()
        with torch.no_grad():
            for parameter in method.trained_parameters().values():
                parameter -= 0.1 * parameter.grad
    assert losses[0] < 0.3  # log 4 = 1.4 at random
    assert losses[1] < 0.05


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_distances_of_rows_far_from_zero(offset: float) -> None:
    """In float32 the squares of 1e4 would hide small distances: only the rounding of the rows themselves is allowed."""
    rows = torch.randn(2, 40, 7, generator=torch.Generator().manual_seed(1)) + offset
    first = windows(torch.ones(29, 2, dtype=torch.bool), torch.tensor([10, 4]), held=10, capacity=10)
    found = nearest(rows, first, 3).numpy()
    for environment, begins in enumerate(first.tolist()):
        exact = rows[environment].double().numpy()
        for row in range(1, 30):
            known = exact[begins[row] : 10 + row]
            expected = sorted(((exact[10 + row] - known) ** 2).sum(1))[:3]
            np.testing.assert_allclose(found[environment, row - 1], expected, rtol=1e-5 if offset else 1e-6)


def test_equal_observations_give_finite_rewards_in_float32() -> None:
    """All observations are equal, so distances and their mean are 0."""
    method = ngu_of(dtype=torch.float32)
    (steps,) = rollouts_of(method, VECTOR, COUNT, [8])
    steps.features[:] = steps.features[0, 0]
    carried = method.initial_state(COUNT)
    (found,) = method.reward([steps], [carried], ordered_sum)
    assert found.dtype == carried["memory"].dtype == torch.float32
    assert torch.isfinite(found).all()
    assert found[found > 0].max() < 5 / math.sqrt(2)


def test_non_finite_observations_give_nan_rewards() -> None:
    method = ngu_of()
    (steps,) = rollouts_of(method, VECTOR, COUNT, [8])
    steps.features[3:] = torch.nan
    (found,) = method.reward([steps], [method.initial_state(COUNT)], ordered_sum)
    assert torch.isnan(found[3:]).any()


def test_names_of_the_running_statistics() -> None:
    method = ngu_of()
    assert set(method.statistics) == {"features", "returns", "distances", "errors"}

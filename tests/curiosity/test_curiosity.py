"""Behavior common to all methods: normalization of observations, running statistics over all shards, encoding of actions."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.curiosity.rollouts import IMAGES, VECTOR, method_of, normal, rollout_of, spaces_of
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from lockstep.compiling.row_kernels import RowKernels
from lockstep.curiosity.curiosity import Curiosity
from lockstep.curiosity.embedding import ActionEncoder
from lockstep.envs.spaces import Spaces
from lockstep.group.group import ordered_sum
from lockstep.models.normalization import RunningStatistics
from lockstep.rollout import Rollout

BUILT_IN = ("icm", "rnd", "ngu", "e3b", "re3", "disagreement")
TRAINED = ("icm", "rnd", "ngu", "e3b", "disagreement")
# a mask is no feature
MASKED = spaces_of(3, choices=(2, 3), masked=True)


def valid_next_rows(rollouts: Sequence[Rollout], name: str, size: int) -> np.ndarray:
    """Return the next observations or images of all valid steps of all rollouts."""
    rows = [getattr(rollout, name)[1:][rollout.valid][:, :size] for rollout in rollouts]
    return torch.cat(rows).to(torch.float64).numpy()


@pytest.mark.parametrize("spaces", [VECTOR, MASKED, IMAGES])
def test_running_statistics_cover_all_shards(spaces: Spaces) -> None:
    method, all_rollouts = method_of("rnd", spaces), []
    for iteration in range(3):
        rollouts = [rollout_of(spaces, 20, 4, f"{iteration} {shard}", 1 + shard) for shard in range(2)]
        method.observe(rollouts, ordered_sum)
        all_rollouts += rollouts
    for name, tensor_name, size in (
        ("features", "observations", spaces.feature_size),
        ("pixels", "pixels", spaces.pixel_count),
    ):
        if size:
            found, expected = method.statistics[name], valid_next_rows(all_rollouts, tensor_name, size)
            assert found.count.item() == len(expected)
            np.testing.assert_allclose(found.mean, expected.mean(0), rtol=1e-12)
            np.testing.assert_allclose(found.std, np.sqrt(expected.var(0) + 1e-8), rtol=1e-9)


def test_running_statistics_include_the_shards_of_other_ranks() -> None:
    """Two ranks with one shard each get the same bits as one rank with both."""
    rollouts = [rollout_of(IMAGES, 20, 4, f"{shard}") for shard in range(2)]
    both, first, parts = method_of("rnd", IMAGES), method_of("rnd", IMAGES), []

    def record_sums(rows: Tensor) -> Tensor:
        parts.append(rows)
        return torch.zeros_like(rows[0])  # a sum of nothing, which changes no statistics

    for rollout in rollouts:
        first.observe([rollout], record_sums)
    assert first.statistics["features"].count.item() == 0
    first.observe(rollouts[:1], lambda rows: ordered_sum(torch.cat(parts)))
    both.observe(rollouts, ordered_sum)
    for name, statistics in both.statistics.items():
        for found, expected in zip(first.statistics[name].state().values(), statistics.state().values(), strict=True):
            assert torch.equal(found, expected)


def test_running_statistics_ignore_reset_rows() -> None:
    one, other = method_of("rnd", IMAGES), method_of("rnd", IMAGES)
    rollout, changed = rollout_of(IMAGES, 20, 4), rollout_of(IMAGES, 20, 4)
    assert not rollout.valid.all()
    changed.observations[1:][~rollout.valid] = torch.nan
    changed.pixels[1:][~rollout.valid] = 255
    one.observe([rollout], ordered_sum)
    other.observe([changed], ordered_sum)
    for name in ("features", "pixels"):
        assert torch.equal(one.statistics[name].mean, other.statistics[name].mean)
        assert torch.equal(one.statistics[name].std, other.statistics[name].std)


def test_features_are_normalized_and_clipped_to_5() -> None:
    method, rollout = method_of("rnd", MASKED), rollout_of(MASKED, 200, 4)
    rollout.observations[7, 1, 0] = 1e6
    before = method.transitions(rollout).features
    torch.testing.assert_close(before, rollout.observations[..., :3].clamp(-5, 5))
    method.observe([rollout], ordered_sum)
    steps, observed = method.transitions(rollout), valid_next_rows([rollout], "observations", 3)
    expected = (rollout.observations[..., :3].numpy() - observed.mean(0)) / np.sqrt(observed.var(0) + 1e-8)
    np.testing.assert_allclose(steps.features, expected.clip(-5, 5), rtol=1e-10, atol=1e-12)
    assert steps.features[7, 1, 0] == 5
    assert torch.equal(steps.pixels, rollout.pixels)
    assert torch.equal(steps.valid, rollout.valid)
    assert torch.equal(steps.actions.flatten(0, 1), method.action_encoder(rollout.actions.flatten(0, 1)))


def test_transitions_number_the_episodes() -> None:
    rollout = rollout_of(VECTOR, 5, 2)
    rollout.valid.copy_(torch.tensor([[1, 0], [1, 1], [0, 1], [1, 1], [0, 0]], dtype=torch.bool))
    found = method_of("rnd", VECTOR).transitions(rollout).episodes
    assert found.t().tolist() == [[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 2]]


@pytest.mark.parametrize(("channels", "dropped"), [(None, 0), (3, 0), (2, 24), (1, 48)])
def test_channels_selects_the_last_channels_of_every_image(channels: int | None, dropped: int) -> None:
    spaces = spaces_of(0, choices=(4,), images=[(1, 3, 4), (3, 4, 6), (1, 2, 6)])
    places = [*range(12), *range(12 + dropped, 96)]  # of the images that have one channel, that one
    method, pixels = method_of("rnd", spaces, channels=channels), rollout_of(spaces, 9, 2).pixels.flatten(0, 1)
    assert [shape[0] for shape in method.images] == [1, min(3, channels or 3), 1]
    assert method.statistics["pixels"].mean.numel() == len(places)
    # before anything was observed, bytes are only kept within 5
    torch.testing.assert_close(method.normalize_images(pixels), pixels[:, places].to(torch.float64).clamp(max=5))
    rollout = rollout_of(spaces, 9, 2)
    method.observe([rollout], ordered_sum)
    observed = valid_next_rows([rollout], "pixels", 96)[:, places]
    expected = (pixels[:, places].numpy() - observed.mean(0)) / np.sqrt(observed.var(0) + 1e-8)
    np.testing.assert_allclose(method.normalize_images(pixels), expected.clip(-5, 5), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [3, 60])
def test_images_are_embedded_in_blocks(count: int) -> None:
    method, rollout = method_of("rnd", IMAGES), rollout_of(IMAGES, 9, count)
    method.observe([rollout], ordered_sum)
    steps = method.transitions(rollout)
    found = method.embed(method.target, steps)
    with torch.no_grad():
        expected = method.target(steps.features.flatten(0, 1), method.normalize_images(steps.pixels.flatten(0, 1)))
    torch.testing.assert_close(found, expected.view(10, count, 6), rtol=0, atol=1e-12)


@pytest.mark.parametrize("spaces", [VECTOR, spaces_of(3, low=(-1, -2), high=(1, 2))])
@pytest.mark.parametrize("kind", BUILT_IN)
def test_kernels_give_the_same_rewards(kind: str, spaces: Spaces) -> None:
    def rewards(method: Curiosity, rollout: Rollout) -> Tensor:
        steps = method.transitions(rollout)
        return method.reward([steps], [method.initial_state(5)], ordered_sum)[0]

    plain, fast = method_of(kind, spaces), method_of(kind, spaces)
    fast.kernels, made = RowKernels(), 0
    for iteration in range(3):
        rollout = rollout_of(spaces, 67, 5, f"{iteration}")  # two blocks that overlap
        for method in (plain, fast):
            method.observe([rollout], ordered_sum)
            with torch.no_grad():  # a step of training, in place
                for parameter in method.trained_parameters().values():
                    parameter.add_(0.1 * torch.cos(parameter))
        torch.testing.assert_close(rewards(fast, rollout), rewards(plain, rollout), rtol=1e-9, atol=1e-11)
        made = made or len(fast.kernels._kernels)
        assert len(fast.kernels._kernels) == made > 0


@pytest.mark.parametrize("images", [[(1, 40, 36), (3, 7, 7)], [(2, 30, 20)]])
def test_embedding_depends_on_every_image(images: list[tuple[int, int, int]]) -> None:
    spaces = spaces_of(2, choices=(4,), images=images)
    method, rollout = method_of("rnd", spaces), rollout_of(spaces, 1, 2)
    pixels = rollout.pixels[0].to(torch.float64) / 100
    found = method.target(rollout.observations[0], pixels)
    assert found.shape == (2, 6)
    sizes = [math.prod(shape) for shape in images]
    for place in (sum(sizes[:index]) for index in range(len(sizes))):
        other = pixels.clone()
        other[0, place] += 5
        changed = method.target(rollout.observations[0], other)
        assert not torch.equal(changed[0], found[0])
        torch.testing.assert_close(changed[1], found[1], rtol=0, atol=1e-12)


def encoder_of(squash: bool, choices: Sequence[int], low: Sequence[float], high: Sequence[float]) -> ActionEncoder:
    return ActionEncoder(spaces_of(1, choices, low, high), squash, torch.float64)


def test_discrete_action_is_one_hot() -> None:
    encoder = encoder_of(False, (3,), (), ())
    assert encoder.size == 3
    assert encoder(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_several_discrete_actions_are_concatenated() -> None:
    encoder = encoder_of(False, (3, 2), (), ())
    assert encoder.size == 5
    assert encoder(torch.tensor([[2.0, 0.0], [0.0, 1.0]])).tolist() == [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]]


INF = float("inf")


@pytest.mark.parametrize(
    ("low", "high", "squash", "actions", "expected"),
    [
        ([-2], [4], False, [-9, -2, 1, 2.5, 7], [-1, -1, 0, 0.5, 1]),
        ([-2], [4], True, [-9, 0, 0.5, 9], [np.tanh(-9), 0, np.tanh(0.5), np.tanh(9)]),
        ([-INF], [INF], False, [-90, 0.25, 1e6], [-90, 0.25, 1e6]),
        ([-3.4e38], [3.4e38], False, [-90, 0.25], [-90, 0.25]),
        ([0], [INF], False, [-90, 0.25, 12], [0, 0.25, 12]),
        ([1], [1], False, [-90, 1, 5], [0, 0, 0]),
    ],
)
def test_continuous_actions_are_clipped_and_scaled(
    low: list[float], high: list[float], squash: bool, actions: list[float], expected: list[float]
) -> None:
    encoder = encoder_of(squash, (), low, high)
    found = encoder(torch.tensor(actions, dtype=torch.float64).unsqueeze(1))
    np.testing.assert_allclose(found.squeeze(1), expected, rtol=1e-12, atol=1e-12)


def test_mixed_discrete_and_continuous_actions() -> None:
    encoder = encoder_of(False, (2,), [-1, -INF], [1, INF])
    assert encoder.size == 4
    assert encoder(torch.tensor([[1, 0.5, 7], [0, -3, -7.0]])).tolist() == [[0, 1, 0.5, 7], [1, 0, -1, -7]]


@pytest.mark.parametrize(
    ("choices", "continuous"),
    [((4,), 0), ((3, 2, 5), 0), ((), 3), ((3, 2), 2)],
    ids=["one discrete", "several discrete", "continuous", "mixed"],
)
def test_action_loss_is_cross_entropy_and_half_the_squared_error(choices: tuple[int, ...], continuous: int) -> None:
    encoder = encoder_of(False, choices, [-1] * continuous, [1] * continuous)
    random = torch.Generator().manual_seed(1)
    chosen = [torch.randint(options, (7,), generator=random) for options in choices]
    numbers = torch.rand(7, continuous, dtype=torch.float64, generator=random)
    rows = torch.cat([*(choice.unsqueeze(1).to(torch.float64) for choice in chosen), numbers], 1)
    prediction = normal("guess", 7, encoder.size, scale=3)
    parts = prediction.split([*choices, continuous], 1)
    expected = 0.5 * (parts[-1] - numbers).square().sum(1)
    for logits, choice in zip(parts, chosen, strict=False):
        expected = expected + functional.cross_entropy(logits, choice, reduction="none")
    actions = rows.squeeze(1).to(torch.int64) if (len(choices), continuous) == (1, 0) else rows
    torch.testing.assert_close(encoder.loss(prediction, encoder(actions)), expected, rtol=0, atol=1e-12)


def test_kind_none_has_no_method() -> None:
    assert method_of("none", VECTOR) is None


@pytest.mark.parametrize("kind", BUILT_IN)
def test_initial_weights_follow_from_the_seed(kind: str) -> None:
    state = torch.random.get_rng_state()
    first, second, other = (method_of(kind, IMAGES, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert all(parameter.dtype == torch.float64 for parameter in first.parameters())


@pytest.mark.parametrize("kind", BUILT_IN)
def test_running_statistics_are_restored(kind: str) -> None:
    method, other, rollout = method_of(kind, IMAGES), method_of(kind, IMAGES), rollout_of(IMAGES, 9, 4)
    method.observe([rollout], ordered_sum)
    for name, statistics in other.statistics.items():
        statistics.load(method.statistics[name].state())
    other.refresh()
    assert torch.equal(other.transitions(rollout).features, method.transitions(rollout).features)
    assert torch.equal(other.normalize_images(rollout.pixels[0]), method.normalize_images(rollout.pixels[0]))
    assert isinstance(other.statistics["returns"], RunningStatistics)


@pytest.mark.parametrize("kind", TRAINED)
def test_losses_can_be_traced(kind: str) -> None:
    """Losses and gradients can be traced as pure functions of flat tensors, as compilation requires."""
    method, rollout = method_of(kind, VECTOR), rollout_of(VECTOR, 9, 4)
    method.observe([rollout], ordered_sum)
    columns, names = method.columns(method.transitions(rollout)), list(method.trained_parameters())

    class Losses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.method = method

        def forward(self, rows: Tensor) -> Tensor:
            return method.loss(rows, None)

    def formula(rows: Tensor, *weights: Tensor) -> list[Tensor]:
        parameters = {
            f"method.{name}": weight.detach().requires_grad_() for name, weight in zip(names, weights, strict=True)
        }
        with torch.enable_grad():
            losses = functional_call(Losses(), parameters, (rows,))
            return [losses, *torch.autograd.grad(losses.sum(), list(parameters.values()))]

    weights = [weight.detach() for weight in method.trained_parameters().values()]
    traced = make_fx(formula)(columns, *weights)
    other = columns.flip(0) + 0.5
    for found, expected in zip(traced(other, *weights), formula(other, *weights), strict=True):
        assert expected.ne(0).any()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert traced(other, *weights)[0].shape == (36, len(method.losses))

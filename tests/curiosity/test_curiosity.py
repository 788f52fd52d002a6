"""What methods have in common: observations as they see them, moments over all shards, actions as they see them."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from tests.curiosity.rollouts import IMAGES, VECTOR, drawn, method_of, rollout_of, spaces_of
from torch import Tensor, nn
from torch.func import functional_call
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from lockstep.curiosity.embedding import ActionEncoder
from lockstep.envs.spaces import Spaces
from lockstep.group.group import ordered_sum
from lockstep.models.normalization import RunningStatistics
from lockstep.rollout import Rollout

BUILT_IN = ("icm", "rnd", "ngu", "e3b", "re3", "disagreement")
TRAINED = ("icm", "rnd", "ngu", "e3b", "disagreement")
# a mask is no feature
MASKED = spaces_of(3, choices=(2, 3), masked=True)


def together(rollouts: Sequence[Rollout], name: str, size: int) -> np.ndarray:
    """What valid steps led to, of all rollouts."""
    rows = [getattr(own, name)[1:][own.valid][:, :size] for own in rollouts]
    return torch.cat(rows).to(torch.float64).numpy()


@pytest.mark.parametrize("spaces", [VECTOR, MASKED, IMAGES])
def test_moments_are_those_of_all_shards(spaces: Spaces) -> None:
    method, seen = method_of("rnd", spaces), []
    for iteration in range(3):
        rollouts = [rollout_of(spaces, 20, 4, f"{iteration} {shard}", 1 + shard) for shard in range(2)]
        method.observe(rollouts, ordered_sum)
        seen += rollouts
    for name, of, size in (("features", "observations", spaces.feature_size), ("pixels", "pixels", spaces.pixel_count)):
        if size:
            found, expected = method.moments[name], together(seen, of, size)
            assert found.count.item() == len(expected)
            np.testing.assert_allclose(found.mean, expected.mean(0), rtol=1e-12)
            np.testing.assert_allclose(found.std, np.sqrt(expected.var(0) + 1e-8), rtol=1e-9)


def test_a_rank_adds_what_others_observed() -> None:
    """Two ranks with a shard each come to the same bits as one that has both."""
    rollouts = [rollout_of(IMAGES, 20, 4, f"{shard}") for shard in range(2)]
    both, first, parts = method_of("rnd", IMAGES), method_of("rnd", IMAGES), []

    def keep(rows: Tensor) -> Tensor:
        parts.append(rows)
        return torch.zeros_like(rows[0])  # a sum of nothing, which changes no moments

    for own in rollouts:
        first.observe([own], keep)
    assert first.moments["features"].count.item() == 0
    first.observe(rollouts[:1], lambda rows: ordered_sum(torch.cat(parts)))
    both.observe(rollouts, ordered_sum)
    for name, moments in both.moments.items():
        for found, expected in zip(first.moments[name].state().values(), moments.state().values(), strict=True):
            assert torch.equal(found, expected)


def test_reset_rows_count_nowhere() -> None:
    one, other = method_of("rnd", IMAGES), method_of("rnd", IMAGES)
    rollout, changed = rollout_of(IMAGES, 20, 4), rollout_of(IMAGES, 20, 4)
    assert not rollout.valid.all()
    changed.observations[1:][~rollout.valid] = torch.nan
    changed.pixels[1:][~rollout.valid] = 255
    one.observe([rollout], ordered_sum)
    other.observe([changed], ordered_sum)
    for name in ("features", "pixels"):
        assert torch.equal(one.moments[name].mean, other.moments[name].mean)
        assert torch.equal(one.moments[name].std, other.moments[name].std)


def test_features_are_shifted_scaled_and_kept_within_5() -> None:
    method, rollout = method_of("rnd", MASKED), rollout_of(MASKED, 200, 4)
    rollout.observations[7, 1, 0] = 1e6
    before = method.transitions(rollout).features
    torch.testing.assert_close(before, rollout.observations[..., :3].clamp(-5, 5))
    method.observe([rollout], ordered_sum)
    steps, of = method.transitions(rollout), together([rollout], "observations", 3)
    expected = (rollout.observations[..., :3].numpy() - of.mean(0)) / np.sqrt(of.var(0) + 1e-8)
    np.testing.assert_allclose(steps.features, expected.clip(-5, 5), rtol=1e-10, atol=1e-12)
    assert steps.features[7, 1, 0] == 5
    assert torch.equal(steps.pixels, rollout.pixels)
    assert torch.equal(steps.valid, rollout.valid)
    assert torch.equal(steps.actions.flatten(0, 1), method.action_encoder(rollout.actions.flatten(0, 1)))


def test_episodes_are_counted() -> None:
    rollout = rollout_of(VECTOR, 5, 2)
    rollout.valid.copy_(torch.tensor([[1, 0], [1, 1], [0, 1], [1, 1], [0, 0]], dtype=torch.bool))
    found = method_of("rnd", VECTOR).transitions(rollout).episodes
    assert found.t().tolist() == [[0, 0, 0, 1, 1, 2], [0, 1, 1, 1, 1, 2]]


@pytest.mark.parametrize(("channels", "dropped"), [(None, 0), (3, 0), (2, 24), (1, 48)])
def test_the_last_channels_of_every_image(channels: int | None, dropped: int) -> None:
    spaces = spaces_of(0, choices=(4,), images=[(1, 3, 4), (3, 4, 6), (1, 2, 6)])
    places = [*range(12), *range(12 + dropped, 96)]  # of the images that have one channel, that one
    method, pixels = method_of("rnd", spaces, channels=channels), rollout_of(spaces, 9, 2).pixels.flatten(0, 1)
    assert [shape[0] for shape in method.images] == [1, min(3, channels or 3), 1]
    assert method.moments["pixels"].mean.numel() == len(places)
    # before anything was observed, bytes are only kept within 5
    torch.testing.assert_close(method.normalize_images(pixels), pixels[:, places].to(torch.float64).clamp(max=5))
    rollout = rollout_of(spaces, 9, 2)
    method.observe([rollout], ordered_sum)
    of = together([rollout], "pixels", 96)[:, places]
    expected = (pixels[:, places].numpy() - of.mean(0)) / np.sqrt(of.var(0) + 1e-8)
    np.testing.assert_allclose(method.normalize_images(pixels), expected.clip(-5, 5), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [3, 60])
def test_images_go_through_a_network_in_blocks(count: int) -> None:
    method, rollout = method_of("rnd", IMAGES), rollout_of(IMAGES, 9, count)
    method.observe([rollout], ordered_sum)
    steps = method.transitions(rollout)
    found = method.embed(method.target, steps)
    with torch.no_grad():
        expected = method.target(steps.features.flatten(0, 1), method.normalize_images(steps.pixels.flatten(0, 1)))
    torch.testing.assert_close(found, expected.view(10, count, 6), rtol=0, atol=1e-12)


@pytest.mark.parametrize("images", [[(1, 40, 36), (3, 7, 7)], [(2, 30, 20)]])
def test_an_embedding_sees_every_image(images: list[tuple[int, int, int]]) -> None:
    spaces = spaces_of(2, choices=(4,), images=images)
    method, rollout = method_of("rnd", spaces), rollout_of(spaces, 1, 2)
    pixels = rollout.pixels[0].to(torch.float64) / 100
    found = method.target(rollout.observations[0], pixels)
    assert found.shape == (2, 6)
    sizes = [math.prod(shape) for shape in images]
    for place in (sum(sizes[:at]) for at in range(len(sizes))):
        other = pixels.clone()
        other[0, place] += 5
        changed = method.target(rollout.observations[0], other)
        assert not torch.equal(changed[0], found[0])
        torch.testing.assert_close(changed[1], found[1], rtol=0, atol=1e-12)


def code_of(squash: bool, choices: Sequence[int], low: Sequence[float], high: Sequence[float]) -> ActionEncoder:
    return ActionEncoder(spaces_of(1, choices, low, high), squash, torch.float64)


def test_a_choice_is_a_1_in_its_place() -> None:
    code = code_of(False, (3,), (), ())
    assert code.size == 3
    assert code(torch.tensor([2, 0])).tolist() == [[0, 0, 1], [1, 0, 0]]


def test_several_choices_lie_side_by_side() -> None:
    code = code_of(False, (3, 2), (), ())
    assert code.size == 5
    assert code(torch.tensor([[2.0, 0.0], [0.0, 1.0]])).tolist() == [[0, 0, 1, 1, 0], [1, 0, 0, 0, 1]]


INF = float("inf")


@pytest.mark.parametrize(
    ("low", "high", "squash", "drawn", "expected"),
    [
        ([-2], [4], False, [-9, -2, 1, 2.5, 7], [-1, -1, 0, 0.5, 1]),
        ([-2], [4], True, [-9, 0, 0.5, 9], [np.tanh(-9), 0, np.tanh(0.5), np.tanh(9)]),
        ([-INF], [INF], False, [-90, 0.25, 1e6], [-90, 0.25, 1e6]),
        ([-3.4e38], [3.4e38], False, [-90, 0.25], [-90, 0.25]),
        ([0], [INF], False, [-90, 0.25, 12], [0, 0.25, 12]),
        ([1], [1], False, [-90, 1, 5], [0, 0, 0]),
    ],
)
def test_continuous_actions_are_coded_as_the_environment_takes_them(
    low: list[float], high: list[float], squash: bool, drawn: list[float], expected: list[float]
) -> None:
    code = code_of(squash, (), low, high)
    found = code(torch.tensor(drawn, dtype=torch.float64).unsqueeze(1))
    np.testing.assert_allclose(found.squeeze(1), expected, rtol=1e-12, atol=1e-12)


def test_choices_and_numbers_together() -> None:
    code = code_of(False, (2,), [-1, -INF], [1, INF])
    assert code.size == 4
    assert code(torch.tensor([[1, 0.5, 7], [0, -3, -7.0]])).tolist() == [[0, 1, 0.5, 7], [1, 0, -1, -7]]


@pytest.mark.parametrize(
    ("choices", "continuous"), [((4,), 0), ((3, 2, 5), 0), ((), 3), ((3, 2), 2)], ids=["one", "several", "none", "both"]
)
def test_the_loss_of_a_guess_is_cross_entropy_and_half_the_squared_error(
    choices: tuple[int, ...], continuous: int
) -> None:
    code = code_of(False, choices, [-1] * continuous, [1] * continuous)
    random = torch.Generator().manual_seed(1)
    chosen = [torch.randint(options, (7,), generator=random) for options in choices]
    numbers = torch.rand(7, continuous, dtype=torch.float64, generator=random)
    rows = torch.cat([*(own.unsqueeze(1).to(torch.float64) for own in chosen), numbers], 1)
    guess = drawn("guess", 7, code.size, scale=3)
    parts = guess.split([*choices, continuous], 1)
    expected = 0.5 * (parts[-1] - numbers).square().sum(1)
    for logits, own in zip(parts, chosen, strict=False):
        expected = expected + functional.cross_entropy(logits, own, reduction="none")
    actions = rows.squeeze(1).to(torch.int64) if (len(choices), continuous) == (1, 0) else rows
    torch.testing.assert_close(code.loss(guess, code(actions)), expected, rtol=0, atol=1e-12)


def test_none() -> None:
    assert method_of("none", VECTOR) is None


@pytest.mark.parametrize("kind", BUILT_IN)
def test_first_weights_follow_from_the_seed(kind: str) -> None:
    state = torch.random.get_rng_state()
    first, second, other = (method_of(kind, IMAGES, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert all(parameter.dtype == torch.float64 for parameter in first.parameters())


@pytest.mark.parametrize("kind", BUILT_IN)
def test_moments_come_back(kind: str) -> None:
    method, other, rollout = method_of(kind, IMAGES), method_of(kind, IMAGES), rollout_of(IMAGES, 9, 4)
    method.observe([rollout], ordered_sum)
    for name, moments in other.moments.items():
        moments.load(method.moments[name].state())
    other.refresh()
    assert torch.equal(other.transitions(rollout).features, method.transitions(rollout).features)
    assert torch.equal(other.normalize_images(rollout.pixels[0]), method.normalize_images(rollout.pixels[0]))
    assert isinstance(other.moments["returns"], RunningStatistics)


@pytest.mark.parametrize("kind", TRAINED)
def test_losses_can_be_traced(kind: str) -> None:
    """As pure functions of flat tensors, with the gradient, which is what is compiled."""
    method, rollout = method_of(kind, VECTOR), rollout_of(VECTOR, 9, 4)
    method.observe([rollout], ordered_sum)
    columns, names = method.columns(method.transitions(rollout)), list(method.parts())

    class Lost(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.method = method

        def forward(self, rows: Tensor) -> Tensor:
            return method.loss(rows, None)

    def formula(rows: Tensor, *weights: Tensor) -> list[Tensor]:
        parameters = {f"method.{name}": own.detach().requires_grad_() for name, own in zip(names, weights, strict=True)}
        with torch.enable_grad():
            losses = functional_call(Lost(), parameters, (rows,))
            return [losses, *torch.autograd.grad(losses.sum(), list(parameters.values()))]

    weights = [own.detach() for own in method.parts().values()]
    traced = make_fx(formula)(columns, *weights)
    other = columns.flip(0) + 0.5
    for found, expected in zip(traced(other, *weights), formula(other, *weights), strict=True):
        assert expected.ne(0).any()
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    assert traced(other, *weights)[0].shape == (36, len(method.losses))


def test_keys_tell_losses_apart() -> None:
    keys = [
        method_of(kind, VECTOR, **settings).key
        for kind in TRAINED
        for settings in ({}, {"hidden": (32,)}, {"feature_size": 7})
    ]
    keys += [method_of("disagreement", VECTOR, ensemble=3).key, method_of("icm", VECTOR, forward_share=0.5).key]
    assert len(set(keys)) == len(keys)

"""Packed rows by column name, images by row number, and minibatches, against small tables that were written by hand."""

import pytest
import torch
from tests.algorithm.minibatches import minibatches_of
from torch import Tensor

from lockstep.algorithm.batch import Batch, ImageRows, RowLayout, row_weights, sequence_resets

NUMBERED = torch.arange(13.0).repeat(2, 1) + torch.tensor([[0.0], [100.0]])
"""Two rows; every entry is the number of its column, plus 100 in the second row."""


def test_columns_of_a_row_with_two_value_heads() -> None:
    layout = RowLayout(observation_size=2, action_size=1, curiosity_size=3, two_heads=True)
    assert layout.width == 13
    assert layout.observations(NUMBERED).tolist() == [[0, 1], [100, 101]]
    assert layout.actions(NUMBERED).tolist() == [[2], [102]]
    assert layout.curiosity_inputs(NUMBERED).tolist() == [[3, 4, 5], [103, 104, 105]]
    targets, values = layout.intrinsic_values(NUMBERED)
    assert (targets.tolist(), values.tolist()) == ([6, 106], [7, 107])
    assert {name: column.tolist() for name, column in layout.scalars(NUMBERED)._asdict().items()} == {
        "log_probs": [8, 108],
        "advantages": [9, 109],
        "value_targets": [10, 110],
        "values": [11, 111],
        "weights": [12, 112],
    }
    assert row_weights(NUMBERED).tolist() == [12, 112]


def test_columns_of_a_row_with_one_value_head() -> None:
    layout = RowLayout(observation_size=3, action_size=2, curiosity_size=0, two_heads=False)
    rows = NUMBERED[:, :10]
    assert layout.width == 10
    assert layout.observations(rows)[0].tolist() == [0, 1, 2]
    assert layout.actions(rows)[0].tolist() == [3, 4]
    assert layout.curiosity_inputs(rows).shape == (2, 0)
    assert layout.scalars(rows).log_probs.tolist() == [5, 105]
    assert layout.scalars(rows).weights.tolist() == [9, 109]


def test_sequences_are_reset_after_reset_rows() -> None:
    # two sequences of three steps; the first has a reset row at step 0, the second at step 1
    weights = torch.tensor([[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    rows = torch.stack([torch.full((6,), 7.0), weights.flatten()], 1)
    assert sequence_resets(rows, 2).tolist() == [[False, False], [True, False], [False, True]]


def images_of(shard: int) -> Tensor:
    """Return images of one byte: two environments, three steps and the final observations. Byte: shard, step, environment."""
    return torch.tensor([[100 * shard + 10 * step + env] for step in range(4) for env in range(2)], dtype=torch.uint8)


@pytest.mark.parametrize(
    ("numbers", "images", "next_images"),
    [
        ([0, 3, 5], [0, 11, 21], [10, 21, 31]),  # of the first shard alone
        ([6, 8], [100, 110], [110, 120]),  # of the second shard alone
        ([11, 0, 7, 4], [121, 0, 101, 20], [131, 10, 111, 30]),  # of both
    ],
)
def test_images_by_row_number(numbers: list[int], images: list[int], next_images: list[int]) -> None:
    rows = ImageRows([images_of(0), images_of(1)], count=2)
    assert rows[torch.tensor(numbers)].flatten().tolist() == images
    assert rows.next(torch.tensor(numbers)).flatten().tolist() == next_images


def batch_of(**settings: object) -> Batch:
    """Create a batch of four rows and one microbatch, with two epochs of two minibatches of two samples."""
    return Batch(
        rows=torch.tensor([[0.0], [1.0], [2.0], [3.0]]),
        order=torch.tensor([[[[3, 1], [0, 2]], [[2, 3], [1, 0]]]]),
        advantage_statistics=torch.tensor([[[2.0, 0, 1], [1.0, 0, 1]], [[2.0, 0, 1], [2.0, 0, 1]]]),
        metrics={},
        **settings,
    )


def test_minibatches_in_the_order_of_every_epoch() -> None:
    minibatches = list(minibatches_of(batch_of()))
    assert [(minibatch.epoch, minibatch.samples) for minibatch in minibatches] == [(0, 2), (0, 1), (1, 2), (1, 2)]
    assert [minibatch.microbatches[0].rows.flatten().tolist() for minibatch in minibatches] == [
        [3, 1],
        [0, 2],
        [2, 3],
        [1, 0],
    ]
    microbatch = minibatches[0].microbatches[0]
    assert (microbatch.pixels, microbatch.states, microbatch.next_pixels) == (None, None, None)


def test_minibatches_of_images() -> None:
    images = ImageRows([torch.arange(6, dtype=torch.uint8).view(6, 1)], count=2)
    (microbatch,) = next(minibatches_of(batch_of(pixels=images, needs_next_pixels=True))).microbatches
    assert microbatch.pixels.flatten().tolist() == [3, 1]
    assert microbatch.next_pixels.flatten().tolist() == [5, 3]
    (microbatch,) = next(minibatches_of(batch_of(pixels=images))).microbatches
    assert microbatch.next_pixels is None


def test_initial_states_of_every_epoch() -> None:
    sequence_numbers = torch.tensor([[[[1], [0]], [[0], [1]]]])  # two sequences of two steps, one per minibatch
    batch = batch_of(
        sequence_numbers=sequence_numbers,
        initial_states=lambda batch, epoch: torch.tensor([[10.0 * epoch], [10.0 * epoch + 1]]),
    )
    assert [minibatch.microbatches[0].states.tolist() for minibatch in minibatches_of(batch)] == [
        [[1]],
        [[0]],
        [[10]],
        [[11]],
    ]

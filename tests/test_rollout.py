"""Shapes, types and memory of rollouts."""

import pytest
import torch

from lockstep.rollout import EPISODE_COLUMNS, PLAYER_FIELDS, Rollout, Sizes

STEPS, COUNT, SIZE, ACTION = 5, 3, 4, 2


@pytest.mark.parametrize("action_size", [None, ACTION])
def test_shapes_and_types(action_size: int | None) -> None:
    rollout = Rollout.empty(Sizes(STEPS, COUNT, SIZE, action_size, (3, 1), torch.float64))
    floats, bools = torch.float64, torch.bool
    actions = ((STEPS, COUNT), torch.int64) if action_size is None else ((STEPS, COUNT, ACTION), floats)
    assert {name: (tuple(x.shape), x.dtype) for name, x in rollout.tensors().items()} == {
        "observations": ((STEPS + 1, COUNT, SIZE), floats),
        "pixels": ((STEPS + 1, COUNT, 0), torch.uint8),
        "states": ((STEPS, COUNT, 0), floats),
        "actions": actions,
        "rewards": ((STEPS, COUNT), floats),
        "terminated": ((STEPS, COUNT), bools),
        "truncated": ((STEPS, COUNT), bools),
        "valid": ((STEPS, COUNT), bools),
        "values": ((STEPS + 1, COUNT), floats),
        "log_probs": ((STEPS, COUNT), floats),
        "statistics_sums": ((1 + 2 * 3 + 1 + 2,), torch.float64),
        "means": ((3 + 1,), torch.float64),
        "episodes": ((STEPS, COUNT, EPISODE_COLUMNS), torch.float64),
        "infos": ((STEPS, COUNT, 0), torch.float64),
        "faults": ((COUNT,), torch.int64),
        "taken": ((1,), torch.int64),
        "status": ((len(PLAYER_FIELDS),), torch.float64),
    }


def test_sums_are_float64_in_a_float32_rollout() -> None:
    rollout = Rollout.empty(Sizes(STEPS, COUNT, SIZE, None, (3, 1), torch.float32))
    assert {name for name, x in rollout.tensors().items() if x.dtype == torch.float64} == {
        "statistics_sums",
        "means",
        "episodes",
        "infos",
        "status",
    }


def test_tensors_and_rollouts_share_no_memory() -> None:
    one, two = (Rollout.empty(Sizes(STEPS, COUNT, SIZE, ACTION, (3, 1), torch.float32)) for _ in range(2))
    addresses = [x.data_ptr() for rollout in (one, two) for x in rollout.tensors().values() if x.numel()]
    assert len(set(addresses)) == len(addresses)
    assert all(x.is_contiguous() and x.data_ptr() % 16 == 0 for x in one.tensors().values())

"""Tests of groups and channels that need only one rank."""

from contextlib import nullcontext
from threading import Event

import pytest
import torch

from lockstep.group.channel import LocalChannel, Spec, slot_bytes
from lockstep.group.group import Clock, PendingSum, RankLost, ordered_sum
from lockstep.group.solo import Solo


def test_ordered_sum_adds_rows_one_after_the_other() -> None:
    # in float32, (1e8 + 1) - 1e8 is 0 and (1e8 - 1e8) + 1 is 1
    assert ordered_sum(torch.tensor([[1e8], [1.0], [-1e8]])).item() == 0
    assert ordered_sum(torch.tensor([[1e8], [-1e8], [1.0]])).item() == 1


def test_ordered_sum_does_not_change_its_input() -> None:
    parts = torch.ones(3, 4)
    assert ordered_sum(parts).tolist() == [3] * 4
    assert torch.equal(parts, torch.ones(3, 4))


def test_operations_of_a_solo_group_do_not_wait() -> None:
    group, parts = Solo(), torch.rand(3, 4, generator=torch.Generator())
    assert torch.equal(group.gather(parts, "rows"), parts)
    assert torch.equal(group.reduce(parts, "sum"), ordered_sum(parts))
    assert group.reduce(parts[1:2], "sum").data_ptr() == parts[1].data_ptr()  # a single row is its own sum
    group.barrier("barrier")
    assert group.timings()[0] == 0


def test_reading_the_clock_resets_it() -> None:
    clock = Clock()
    clock.waited, clock.transferred = 1.0, 2.0
    assert clock.read() == (1.0, 2.0)
    assert clock.read() == (0.0, 0.0)


def test_only_the_wait_for_a_sum_in_the_background_counts_as_communication() -> None:
    clock, done = Clock(), Event()
    clock.waited, clock.transferred = 1.0, 2.0

    def add() -> torch.Tensor:
        clock.waited += 30
        clock.transferred += 10
        done.set()
        return torch.ones(3)

    pending = PendingSum(add, clock, nullcontext())
    assert done.wait(10)
    assert torch.equal(pending.result(), torch.ones(3))
    waited, transferred = clock.waited - 1, clock.transferred - 2
    assert 0 <= waited + transferred < 10
    assert waited == pytest.approx(3 * transferred)


def test_error_of_a_sum_in_the_background_is_raised_by_its_result() -> None:
    def add() -> torch.Tensor:
        raise RankLost("rank 1", "gradients", "its connection was closed")

    with pytest.raises(RankLost, match=r"^rank 1 is lost in phase 'gradients': its connection was closed$"):
        PendingSum(add, Clock(), nullcontext()).result()


def test_split_of_a_solo_group_is_a_solo_group_with_the_same_clock() -> None:
    group = Solo()
    subgroup = group.split([0], [3])
    assert (subgroup.rank, subgroup.size, subgroup.counts) == (0, 1, (3,))
    assert subgroup.clock is group.clock
    assert subgroup.gather(torch.ones(3, 2), "rows").shape == (3, 2)
    with pytest.raises(AssertionError, match="2 rows from rank 0"):
        subgroup.gather(torch.ones(2, 2), "rows")
    subgroup.reduce(torch.ones(3, 2), "sum")
    waited, moved = group.timings()
    assert waited == 0 < moved


SPECS: list[Spec] = [((3, 5), torch.float32), ((7,), torch.bool), ((), torch.int64), ((2, 3), torch.float64)]


def test_local_channel_slots_are_fixed_and_initially_zero() -> None:
    channel = Solo().channel(0, 0, SPECS, 2, "rollouts")
    assert isinstance(channel, LocalChannel)
    for number in (0, 1):
        for (shape, dtype), tensor in zip(SPECS, channel.slot(number), strict=True):
            assert (tensor.shape, tensor.dtype, tensor.device.type) == (shape, dtype, "cpu")
            assert not tensor.any()
            assert tensor.is_contiguous()
            assert tensor.data_ptr() % 64 == 0
            tensor.fill_(number + 1)
    assert [[tensor.flatten()[0].item() for tensor in channel.slot(number)] for number in (50, 51)] == [
        [1, 1, 1, 1],
        [2, 1, 2, 2],
    ]
    assert all(tensor is other for tensor, other in zip(channel.slot(3), channel.slot(5), strict=True))
    assert slot_bytes(SPECS) == 64 * 4


def test_local_channel_receives_only_messages_that_were_sent() -> None:
    channel = Solo().channel(0, 0, SPECS, 1, "rollouts")
    channel.slot(51)[2].fill_(7)
    channel.send(51)
    channel.receive(51)
    assert channel.slot(51)[2] == 7
    with pytest.raises(AssertionError, match="message 52 was never sent"):
        channel.receive(52)

"""Records of one iteration: packing by trainers, decoding on every rank, and idle times."""

import numpy as np
import pytest
import torch

from lockstep.algorithm.plan import Plan
from lockstep.rollout import PLAYER_FIELDS, Rollout, Sizes
from lockstep.run.episodes import EPISODE_ROW
from lockstep.run.records import IdleTimes, ShardRecords, pack_records

ONE_TRAINER = Plan(players=(1, 2), trainers=(0, 0))


def rollout_of(stop: float = 0.0, seconds: float = 4.0, waited: float = 1.0) -> Rollout:
    """Return three steps of two environments, of which one row is a reset row and one episode ends."""
    rollout = Rollout.empty(Sizes(3, 2, 1, None, (), torch.float32))
    status = dict.fromkeys(PLAYER_FIELDS, 0.25) | {"stop": stop, "iter": seconds, "wait": waited}
    rollout.status[:] = torch.tensor(list(status.values()), dtype=torch.float64)
    rollout.valid[0, 1] = False
    rollout.episodes[2, 1] = torch.tensor([30.0, 7.0])
    rollout.faults[1] = 1
    return rollout


def records_of(trainers: list[list[float]], rollouts: list[Rollout]) -> ShardRecords:
    """Pack a rollout of each shard by a trainer of its own, and gather the rows."""
    packed = [
        pack_records(trainer, [shard], [rollout])
        for shard, (trainer, rollout) in enumerate(zip(trainers, rollouts, strict=True))
    ]
    return ShardRecords(torch.cat(packed).numpy())


def test_rows_contain_records_of_trainer_player_and_episodes() -> None:
    rows = pack_records([5.0, 2.0, 0.5, 0.0], [2, 3], [rollout_of(), rollout_of(seconds=8)])
    assert rows.shape == (2, 4 + 8 + EPISODE_ROW + 2)
    assert rows.dtype == torch.float64
    records = ShardRecords(rows.numpy())
    assert records.status.shape == (2, 8)
    assert dict(zip(PLAYER_FIELDS, records.status[1], strict=True)) == {
        "stop": 0, "iter": 8, "rollout": 0.25, "learn": 0.25, "sync": 0.25, "wait": 1, "publish": 0.25, "record": 0.25,
    }  # fmt: skip
    # valid steps, episodes, total length, total, minimum and maximum return; then time, environment, return and length
    assert records.episodes[0, :10].tolist() == [5, 1, 7, 30, 30, 30, 2, 2 * 2 + 1, 30, 7]
    assert records.episodes[1, 7] == 3 * 2 + 1
    assert np.isnan(records.episodes[0, 10:]).all()
    assert records.faults == 2
    assert records.preempted == 0


def test_steps_that_were_not_taken_are_counted() -> None:
    early, complete = rollout_of(), rollout_of()
    early.taken[0] = len(early.rewards) // 2
    missing = (len(early.rewards) - int(early.taken)) / len(early.rewards)
    rows = pack_records([5.0, 2.0, 0.5, 0.0], [0, 1], [early, complete])
    assert ShardRecords(rows.numpy()).preempted == pytest.approx(missing / 2)


@pytest.mark.parametrize(("digests", "agree"), [((7, 7, 7), True), ((7, 7, 8), False), ((2**48 - 1, 2**48 - 2), False)])
def test_different_digests_of_trainers_are_detected(digests: tuple[int, ...], agree: bool) -> None:
    trainers = [[float(digest), 1.0, 0.0, 0.0] for digest in digests]
    assert records_of(trainers, [rollout_of()] * len(digests)).digests_agree is agree


@pytest.mark.parametrize(
    ("digests", "line"),
    [
        ((7, 8, 7), "rank 1 holds other weights than the 2 other trainers"),
        ((6, 7, 7, 7, 8), "ranks 0, 4 hold other weights than the 3 other trainers"),
        ((7, 8), "ranks 0, 1 hold different weights"),
        ((7, 7, 8, 8), "ranks 0, 1, 2, 3 hold different weights"),
    ],
)
def test_trainers_that_differ_from_the_majority_are_named(digests: tuple[int, ...], line: str) -> None:
    trainers = [[float(digest), 1.0, 0.0, 0.0] for digest in digests]
    ranks = tuple(range(len(digests)))
    records = records_of(trainers, [rollout_of()] * len(digests))
    assert records.describe_difference(Plan(ranks, ranks)) == line


@pytest.mark.parametrize(
    ("trainer_stop", "player_stop", "expected"), [(0, 0, False), (15, 0, True), (0, 1, True), (2, 1, True)]
)
def test_stop_request_of_a_trainer_or_a_player(trainer_stop: float, player_stop: float, expected: bool) -> None:
    trainers = [[9.0, 1.0, 1.0, 0.0], [9.0, 1.0, 1.0, trainer_stop]]
    assert records_of(trainers, [rollout_of(), rollout_of(stop=player_stop)]).stop_requested is expected


def test_idle_times_of_a_trainer_and_two_players() -> None:
    # rank 0 trains both shards: 3 s of 10 s; rank 1 plays shard 0: 1 s of 4 s; rank 2 plays shard 1: 6 s of 8 s
    records = records_of([[0, 10.0, 3.0, 0]] * 2, [rollout_of(), rollout_of(seconds=8, waited=6)])
    assert IdleTimes(ONE_TRAINER, 3)(records) == [0.3, 0.25, 0.75]


def test_rank_that_plays_and_trains_has_the_record_of_a_trainer() -> None:
    records = records_of([[0, 10.0, 3.0, 0], [0, 10.0, 9.0, 0]], [rollout_of(), rollout_of()])
    assert IdleTimes(Plan((0, 1), (0, 1)), 2)(records) == [0.3, 0.9]


def test_idle_time_is_0_before_the_first_second() -> None:
    assert IdleTimes(Plan((0,), (0,)), 1)(records_of([[0, 0.0, 0.0, 0]], [rollout_of()])) == [0]

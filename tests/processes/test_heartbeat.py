"""The heartbeat of a rank, as another process of the host reads it."""

import os
from collections.abc import Iterator

import pytest

from lockstep.group.memory import create_memory
from lockstep.phases import STAGES
from lockstep.processes import heartbeat
from lockstep.processes.heartbeat import Heartbeats


@pytest.fixture
def heartbeats() -> Iterator[Heartbeats]:
    descriptor = create_memory(2)
    heartbeats = Heartbeats(descriptor, 2)
    os.close(descriptor)
    heartbeat.attach(heartbeats.cells_of(1), watched=True)
    yield heartbeats
    heartbeat._detach()


def test_heartbeat_says_where_the_rank_is(heartbeats: Heartbeats) -> None:
    line = heartbeats.of_rank(1)
    assert (line.beats, line.exit_code, line.describe_location()) == (1, None, "stage start")
    heartbeat.set_iteration(7)
    heartbeat.enter("rollout")
    heartbeat.beat(3)
    assert (line.beats, line.describe_location()) == (3, "stage rollout, iteration 7, environment 3")
    heartbeat.enter("learn")
    assert line.describe_location() == "stage learn, iteration 7", "no environment is stepped any more"


def test_ranks_have_heartbeats_of_their_own(heartbeats: Heartbeats) -> None:
    heartbeat.beat()
    assert (heartbeats.of_rank(0).beats, heartbeats.of_rank(1).beats) == (0, 2)


@pytest.mark.parametrize("code", [0, 75])
def test_exit_code_of_a_rank_that_is_about_to_end(heartbeats: Heartbeats, code: int) -> None:
    heartbeat.set_exit_code(code)
    assert heartbeats.of_rank(1).exit_code == code


def test_waiting_in_a_library_ends_with_a_beat(heartbeats: Heartbeats) -> None:
    line = heartbeats.of_rank(1)
    with heartbeat.waiting():
        assert line.waiting
    assert (line.waiting, line.beats) == (False, 2)


def test_forked_process_does_not_beat_for_the_rank(heartbeats: Heartbeats) -> None:
    child = os.fork()
    if child == 0:
        heartbeat.beat()
        heartbeat.set_exit_code(0)
        os._exit(1 if heartbeat.is_watched() else 0)
    assert os.waitpid(child, 0)[1] == 0
    assert (heartbeats.of_rank(1).beats, heartbeats.of_rank(1).exit_code) == (1, None)


def test_process_without_launcher_beats_in_vain() -> None:
    heartbeat.enter(STAGES[-1])
    heartbeat.beat()
    assert not heartbeat.is_watched()

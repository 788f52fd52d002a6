"""The history of a shard's environments against a plain record of each."""

import numpy as np
import pytest

from lockstep.envs.history import _PRUNE, History, pasts
from lockstep.randomness import stream

COUNT = 6
NO_IMAGES = np.zeros((COUNT, 0), dtype=np.uint8)


def play(
    history: History, steps: int, records: list[dict[str, object]], draw: np.random.Generator, ends: float
) -> None:
    """`steps` steps; each record is changed as its environment's episode, flag and actions change."""
    for _ in range(steps):
        actions = draw.normal(size=(COUNT, 2)).astype(np.float32)
        terminated, truncated = draw.random((2, COUNT)) < ends
        terminated[0] = truncated[0] = False  # an episode that goes on
        for index, record in enumerate(records):
            if record["waiting"]:
                record["episode"] += 1
                record["actions"], record["waiting"] = [], False
                terminated[index] = truncated[index] = False
                continue
            record["actions"].append(actions[index])
            record["waiting"] = bool(terminated[index] or truncated[index])
        history.add(actions, terminated, truncated)


def check(history: History, records: list[dict[str, object]]) -> None:
    state = history.state(np.zeros((COUNT, 1)), NO_IMAGES)
    assert state["waiting"].tolist() == [record["waiting"] for record in records]
    assert state["lengths"].dtype == state["episodes"].dtype == np.int64
    for past, record in zip(pasts(state), records, strict=True):
        assert past.episode == record["episode"]
        assert np.array_equal(past.actions, np.reshape(record["actions"], (-1, 2)))


@pytest.mark.parametrize("ends", [0.0, 0.1, 0.9])
def test_each_environment_has_its_episode_and_the_actions_in_it(ends: float) -> None:
    records = [{"episode": 0, "waiting": False, "actions": []} for _ in range(COUNT)]
    history, draw = History(COUNT), stream(1, "test")
    for _ in range(20):
        play(history, 7, records, draw, ends)
        check(history, records)
    history = History.of(history.state(np.zeros((COUNT, 1)), NO_IMAGES))
    for _ in range(5):
        check(history, records)
        play(history, 7, records, draw, ends)


def test_a_history_of_nothing() -> None:
    state = History(COUNT).state(np.zeros((COUNT, 1)), NO_IMAGES)
    assert [(past.episode, len(past.actions)) for past in pasts(state)] == [(0, 0)] * COUNT
    assert state["actions"].dtype == np.float32
    assert History.of(state).state(np.zeros((COUNT, 1)), NO_IMAGES)["lengths"].tolist() == [0] * COUNT


def test_actions_that_no_running_episode_needs_are_forgotten() -> None:
    history, none = History(COUNT), np.zeros(COUNT, dtype=bool)
    for step in range(2 * _PRUNE + 1):
        ended = np.full(COUNT, step == _PRUNE)
        history.add(np.zeros((COUNT, 2), dtype=np.float32), ended, none)
    assert len(history.rows) < _PRUNE
    assert history.state(np.zeros((COUNT, 1)), NO_IMAGES)["lengths"].tolist() == [_PRUNE - 1] * COUNT

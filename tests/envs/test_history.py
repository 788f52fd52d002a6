"""The history of a shard's environments, compared with a simple record of each environment."""

import numpy as np
import pytest

from lockstep.envs import history as module
from lockstep.envs.history import _BLOCK, History, episode_logs
from lockstep.randomness import stream

COUNT = 6
NO_IMAGES = np.zeros((COUNT, 0), dtype=np.uint8)


def play(
    history: History, steps: int, records: list[dict[str, object]], draw: np.random.Generator, end_probability: float
) -> None:
    """Take random steps, and update the record of each environment as its episode, flag and actions change."""
    for _ in range(steps):
        actions, rewards = draw.normal(size=(COUNT, 2)).astype(np.float32), draw.normal(size=COUNT)
        history.record(actions)
        terminated, truncated = draw.random((2, COUNT)) < end_probability
        terminated[0] = truncated[0] = False  # the first episode of environment 0 never ends
        for index, record in enumerate(records):
            if record["waiting"]:
                record["episode"] += 1
                record["actions"], record["return"], record["waiting"] = [], 0.0, False
                terminated[index] = truncated[index] = False
                rewards[index] = 0.0
                continue
            record["actions"].append(actions[index].copy())
            record["return"] += float(rewards[index])
            record["waiting"] = bool(terminated[index] or truncated[index])
        actions *= 2  # an environment may change its actions in place
        history.add(rewards, terminated, truncated)


def check(history: History, records: list[dict[str, object]]) -> None:
    state = history.state(np.zeros((COUNT, 1)), NO_IMAGES)
    assert state["waiting"].tolist() == [record["waiting"] for record in records]
    assert state["returns"].tolist() == [record["return"] for record in records]
    assert state["lengths"].dtype == state["episodes"].dtype == np.int64
    for log, record in zip(episode_logs(state), records, strict=True):
        assert log.episode == record["episode"]
        assert np.array_equal(log.actions, np.reshape(record["actions"], (-1, 2)))


@pytest.mark.parametrize("end_probability", [0.0, 0.1, 0.9])
def test_episodes_and_actions_of_each_environment(end_probability: float) -> None:
    records = [{"episode": 0, "waiting": False, "actions": [], "return": 0.0} for _ in range(COUNT)]
    history, draw = History(COUNT), stream(1, "test")
    for _ in range(20):
        play(history, 7, records, draw, end_probability)
        check(history, records)
    state = history.state(np.zeros((COUNT, 1)), NO_IMAGES)
    history = History.from_state(state, state["returns"])
    for _ in range(5):
        check(history, records)
        play(history, 7, records, draw, end_probability)


def test_state_of_a_history_without_steps() -> None:
    state = History(COUNT).state(np.zeros((COUNT, 1)), NO_IMAGES)
    assert [(log.episode, len(log.actions)) for log in episode_logs(state)] == [(0, 0)] * COUNT
    assert state["actions"].dtype == np.float32
    assert (
        History.from_state(state, np.zeros(COUNT)).state(np.zeros((COUNT, 1)), NO_IMAGES)["lengths"].tolist()
        == [0] * COUNT
    )


@pytest.mark.parametrize("blocks", [1, 3])
def test_a_restored_history_of_several_blocks_continues(blocks: int) -> None:
    history, no_ends = History(COUNT), np.zeros(COUNT, dtype=bool)
    numbers = np.arange(COUNT)
    for step in range(blocks * _BLOCK + 10):
        history.record(numbers + step * COUNT)
        history.add(np.ones(COUNT), no_ends, no_ends | (numbers == 2) & (step == 5))
        if step == blocks * _BLOCK:
            state = history.state(np.zeros((COUNT, 1)), NO_IMAGES)
            history = History.from_state(state, state["returns"])
    for index, log in enumerate(episode_logs(history.state(np.zeros((COUNT, 1)), NO_IMAGES))):
        assert np.array_equal(log.actions, index + COUNT * np.arange(7 if index == 2 else 0, blocks * _BLOCK + 10))


def test_actions_of_finished_episodes_are_dropped() -> None:
    history, no_ends = History(COUNT), np.zeros(COUNT, dtype=bool)
    for step in range(2 * _BLOCK + 1):
        ended = np.full(COUNT, step == _BLOCK)
        history.record(np.zeros((COUNT, 2), dtype=np.float32))
        history.add(np.zeros(COUNT), ended, no_ends)
    assert len(history.blocks) == 2
    assert history.state(np.zeros((COUNT, 1)), NO_IMAGES)["lengths"].tolist() == [_BLOCK - 1] * COUNT


@pytest.mark.parametrize(("action", "size"), [(np.int64(1), 8), (np.zeros(6, np.float32), 24)])
def test_log_needs_no_memory_beyond_its_actions(action: np.ndarray, size: int) -> None:
    history, no_ends, steps = History(COUNT), np.zeros(COUNT, dtype=bool), 5 * _BLOCK
    for _ in range(steps):
        history.record(np.stack([action] * COUNT))
        history.add(np.zeros(COUNT), no_ends, no_ends)
    assert sum(block.nbytes for block in history.blocks) == COUNT * steps * size
    assert history.state(np.zeros((COUNT, 1)), NO_IMAGES)["actions"].nbytes == COUNT * steps * size


def test_only_the_first_shard_warns_once_of_a_long_episode(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "_LONG", 10)
    history, no_ends = History(COUNT), np.zeros(COUNT, dtype=bool)
    for step in range(10):
        history.warn_if_long(0, "Endless-v0")
        assert not caplog.records
        history.record(np.zeros(COUNT, dtype=np.int64))
        history.add(np.zeros(COUNT), no_ends, no_ends | (np.arange(COUNT) < 3) & (step == 0))
    history.warn_if_long(COUNT, "Endless-v0")
    assert not caplog.records
    for _ in range(2):
        history.warn_if_long(0, "Endless-v0")
    assert [record.getMessage() for record in caplog.records] == [
        "env.id is 'Endless-v0': environment 3 has taken 10 steps in one episode: every checkpoint stores their actions, and resume "
        "repeats all of them; limit the length of episodes in a new run, with max_episode_steps in env.options or with "
        "Gymnasium's TimeLimit"
    ]

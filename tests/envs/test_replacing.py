"""Environments that fail and are replaced (`env.on_fault: replace`), in worker processes."""

import logging
import re
from typing import Any

import numpy as np
import pytest
from tests.envs.failing import ENV_ID, KINDS, LENGTH, seed_of_episode

from lockstep.envs.catalog import make_engine
from lockstep.envs.engine import Engine, EnvironmentFailed
from lockstep.envs.faults import FaultLimit
from lockstep.envs.settings import EnvConfig

COUNT = 3
AT = 3
FAILING = 1
"""The environment that fails in step `AT` of its first episode."""


def engine_of(kind: str = "none", at: int = AT, engine: str = "gymnasium-async", **settings: Any) -> Engine:
    settings = {"on_fault": "replace", "timeout": 1.0 if kind == "hang" else 60.0, **settings}
    seed = settings.pop("seed", seed_of_episode(1, COUNT, FAILING, 0))
    options = {"kind": kind, "failing": seed, "at": at}
    config = EnvConfig(id=ENV_ID, engine=engine, count=COUNT, options=options, **settings)  # type: ignore[arg-type]
    return make_engine(config, seed=1, shard=0, shards=1)


def rows_of(engine: Engine, steps: int) -> list[list[np.ndarray]]:
    """Take steps with other actions in each, and return copies of their results."""
    actions = [np.array([t % 2, 1, (t + 1) % 2]) for t in range(steps)]
    return [[np.array(part) for part in engine.step(action)] for action in actions]


def column(rows: list[list[np.ndarray]], index: int) -> list[list[Any]]:
    return [[part[index].tolist() for part in row] for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_environment_that_fails_is_replaced(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    engine, whole = engine_of(kind), engine_of(engine="gymnasium", on_fault="stop")
    assert engine.reset().tobytes() == whole.reset().tobytes()
    with caplog.at_level(logging.WARNING):
        before, lost = rows_of(engine, AT), list(engine.lost)
    after = rows_of(engine, 5)
    expected = rows_of(whole, AT) + rows_of(whole, 5)
    assert lost == [FAILING]
    assert list(engine.lost) == []
    for other in (0, 2):
        assert column(before + after, other) == column(expected, other)
    assert column(before, FAILING)[:-1] == column(expected, FAILING)[: AT - 1]
    assert column(before, FAILING)[-1] == [[0.0, 0.0], 0.0, True, False]
    place = float(seed_of_episode(1, COUNT, FAILING, 1) % 1000)
    steps = [[[place, float(t)], float(t > 0), t == LENGTH, False] for t in range(5)]
    assert column(after, FAILING) == steps
    engine.close()
    (record,) = caplog.records
    assert "the environment is replaced (fault 1 of at most 10 within an hour" in record.getMessage()
    assert re.search(rf"environment {FAILING} ", record.getMessage())
    assert ("in _raise" in record.getMessage()) == (kind == "raise")  # the traceback


@pytest.mark.parametrize("steps", [AT, AT + 1, AT + 3])
@pytest.mark.parametrize("engine_name", ["gymnasium", "gymnasium-async"])
def test_engine_is_restored_after_a_fault(steps: int, engine_name: str) -> None:
    engine = engine_of("raise")
    engine.reset()
    rows_of(engine, steps)
    state = {name: np.array(value) for name, value in engine.state().items()}
    assert ("lost" in state) == (steps == AT)
    on_fault = "replace" if engine_name == "gymnasium-async" else "stop"
    other = engine_of("raise", engine=engine_name, on_fault=on_fault)
    observations = np.array(other.restore(state))
    assert observations.tobytes() == state["observations"].tobytes()
    assert {name: value.tolist() for name, value in other.state().items()} == {
        name: value.tolist() for name, value in state.items()
    }
    for row, other_row in zip(rows_of(engine, 9), rows_of(other, 9), strict=True):
        assert [part.tobytes() for part in row] == [part.tobytes() for part in other_row]
    engine.close()
    other.close()


def test_environment_that_fails_in_its_reset_is_replaced() -> None:
    engine = engine_of("raise", at=0)
    observations = np.array(engine.reset())
    assert list(engine.lost) == [FAILING]
    assert observations[FAILING].tolist() == [0.0, 0.0]
    (row,) = rows_of(engine, 1)
    assert list(engine.lost) == []
    assert column([row], FAILING) == [[[float(seed_of_episode(1, COUNT, FAILING, 1) % 1000), 0.0], 0.0, False, False]]
    engine.close()


def test_environment_that_fails_in_a_replay_is_replaced() -> None:
    engine, other = engine_of(), engine_of("exit")
    engine.reset()
    rows_of(engine, AT + 1)
    other.restore(engine.state())
    assert list(other.lost) == [FAILING]
    expected, rows = rows_of(engine, 4), rows_of(other, 4)
    assert column(rows, 0) == column(expected, 0)
    assert column(rows, FAILING)[0][0] == [float(seed_of_episode(1, COUNT, FAILING, 1) % 1000), 0.0]
    engine.close()
    other.close()


def test_too_many_faults_end_the_run() -> None:
    engine = engine_of("raise", at=1, seed=-2, max_faults=4)
    engine.reset()
    rows_of(engine, 1)  # all three fail
    assert sorted(engine.lost) == [0, 1, 2]
    rows_of(engine, 1)
    line = r"environment \d \(.*\) failed: RuntimeError: this environment fails; this is fault 5 within an hour, and env.max_faults is 4"
    with pytest.raises(EnvironmentFailed, match=line):
        rows_of(engine, 1)
    engine.close()


def test_faults_are_forgotten_after_an_hour() -> None:
    times = [0.0, 1000.0, 3600.0, 4599.0]
    limit = FaultLimit(2, clock=times.pop)
    times.reverse()
    for _ in range(3):
        limit.add("fault", "")
    with pytest.raises(EnvironmentFailed, match=r"fault; this is fault 3 within an hour, and env\.max_faults is 2"):
        limit.add("fault", "trace")


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            {"engine": "gymnasium", "on_fault": "replace"},
            "env.on_fault is 'replace': it needs an engine with a process per environment, 'gymnasium-async', but env.engine is "
            "'gymnasium'; use 'gymnasium-async'",
        ),
        ({"engine": "pettingzoo", "on_fault": "replace"}, "but env.engine is 'pettingzoo'; leave it out"),
        ({"max_faults": 0}, "env.max_faults is 0: it must be between 1 and 1,000,000"),
    ],
)
def test_bad_settings_are_refused(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        EnvConfig(**settings)

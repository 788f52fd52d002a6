"""Measurement of a training run in a separate process."""

import tempfile
from pathlib import Path

import pytest
from tests.forked import SERVERS

from lockstep.bench.training import Training, default_warmup, train
from lockstep.config import Config
from lockstep.config.compose import load
from lockstep.experiment.resolve import resolve
from lockstep.phases import PHASES
from lockstep.processes.children import ProcessFailed

pytestmark = pytest.mark.slow


def experiment(ranks: int, **plan: object) -> Config:
    rollout, runtime = {"steps": 64}, {"device": "cpu", "compile": "off"}
    return resolve(load(None, None, {"rollout": rollout, "plan": plan, "runtime": runtime}), ranks)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("ranks", "kind"), [(1, "coupled"), pytest.param(2, "coupled", marks=pytest.mark.exhaustive), (2, "1:1")]
)
def test_a_run_is_measured_and_leaves_no_files(
    temporary: Path, ranks: int, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(SERVERS, raising=False)  # the memory of forked ranks is not observed: they are not children
    training = train(experiment(ranks, kind=kind), ranks, iterations=7)
    assert [row["iteration"] for row in training.rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [row["iteration"] for row in training.counted] == [3, 4, 5, 6, 7]
    assert training.rate > 0
    assert training.first_update > 0
    phases = training.phases()
    assert sum(phases[name] for name in PHASES) == pytest.approx(phases["iter"])
    players = training.phases("player_t_")
    assert bool(players) == (kind == "1:1")
    assert sum(players.get(name, 0) for name in PHASES) == pytest.approx(players.get("iter", 0))
    assert len(training.memory) == ranks
    assert all(peak > 50e6 for peak in training.memory)
    assert list(temporary.iterdir()) == []


def test_a_run_bounded_by_seconds_ends(temporary: Path) -> None:
    assert len(train(experiment(1), 1, seconds=0.2).rows) >= 5
    assert list(temporary.iterdir()) == []


def test_the_error_of_a_run_is_reported() -> None:
    with pytest.raises(ProcessFailed, match=r"code 2: lockstep: env\.id is 'Nope-v1'"):
        train(load(None, None, {"env": {"id": "Nope-v1"}}), 1, iterations=5)


def test_the_rate_is_computed_after_the_warmup() -> None:
    rows = [{"env_steps": 100.0 * (k + 1), "t_iter": 9.0 if k < 2 else 0.5} for k in range(6)]
    assert Training(rows, 0.0, []).rate == 200.0
    assert [default_warmup(count) for count in (2, 3, 5, 20, 100)] == [1, 2, 2, 2, 10]

"""A training run that is measured, as a process of its own."""

import tempfile
from pathlib import Path

import pytest

from lockstep.bench.training import PHASES, Training, train, warmup
from lockstep.config import Config
from lockstep.config.compose import load
from lockstep.experiment.resolve import resolve
from lockstep.processes.children import ProcessFailed

pytestmark = pytest.mark.slow


def experiment(ranks: int, **plan: object) -> Config:
    rollout, runtime = {"steps": 64}, {"device": "cpu"}
    return resolve(load(None, None, {"rollout": rollout, "plan": plan, "runtime": runtime}), ranks)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(("ranks", "kind"), [(1, "coupled"), (2, "coupled"), (2, "1:1")])
def test_a_run_shows_its_speed_and_leaves_nothing(temporary: Path, ranks: int, kind: str) -> None:
    found = train(experiment(ranks, kind=kind), ranks, iterations=7)
    assert [row["iteration"] for row in found.rows] == [1, 2, 3, 4, 5, 6, 7]
    assert [row["iteration"] for row in found.counted] == [3, 4, 5, 6, 7]
    assert found.rate > 0
    assert found.first_update > 0
    phases = found.phases()
    assert sum(phases[name] for name in PHASES) == pytest.approx(phases["iter"])
    players = found.phases("player_t_")
    assert bool(players) == (kind == "1:1")
    assert sum(players.get(name, 0) for name in PHASES) == pytest.approx(players.get("iter", 0))
    assert len(found.memory) == ranks
    assert all(peak > 50e6 for peak in found.memory)
    assert list(temporary.iterdir()) == []


def test_a_run_of_some_seconds_ends(temporary: Path) -> None:
    assert len(train(experiment(1), 1, seconds=0.2).rows) >= 5
    assert list(temporary.iterdir()) == []


def test_a_run_that_fails_is_told() -> None:
    with pytest.raises(ProcessFailed, match=r"code 2: lockstep: env\.id is 'Nope-v1'"):
        train(load(None, None, {"env": {"id": "Nope-v1"}}), 1, iterations=5)


def test_the_rate_is_that_of_the_rows_after_the_warmup() -> None:
    rows = [{"env_steps": 100.0 * (k + 1), "t_iter": 9.0 if k < 2 else 0.5} for k in range(6)]
    assert Training(rows, 0.0, []).rate == 200.0
    assert [warmup(count) for count in (2, 3, 5, 20, 100)] == [1, 2, 2, 2, 10]

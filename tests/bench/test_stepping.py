"""Speed of the environments without training."""

import numpy as np
import pytest
from tests.envs.sample_environments import register

from lockstep.bench import stepping
from lockstep.bench.stepping import engine_rate
from lockstep.config.compose import load
from lockstep.envs.catalog import make_engine
from lockstep.envs.settings import EnvConfig
from lockstep.experiment.resolve import resolve
from lockstep.processes.children import ProcessFailed


@pytest.mark.slow
@pytest.mark.parametrize("plan", [{"shards": 4}, {"kind": "1:1"}])
def test_the_environments_of_all_players_are_stepped(plan: dict[str, object]) -> None:
    config = resolve(load(None, None, {"plan": plan, "runtime": {"device": "cpu"}}), 2)
    assert engine_rate(config, 2, 0.05) > 0


@pytest.mark.slow
def test_the_error_of_an_environment_is_reported() -> None:
    with pytest.raises(ProcessFailed, match="Nope-v1"):
        engine_rate(load(None, None, {"env": {"id": "Nope-v1", "engine": "gymnasium"}, "plan": {"shards": 2}}), 2, 0.05)


def test_actions_of_every_kind_are_sampled() -> None:
    register()
    config = EnvConfig(id="lockstep-tests/Mixed-v0", engine="gymnasium", count=2)
    engine = make_engine(config, 1, 0, 1)  # this environment checks its actions
    actions = stepping._actions(engine, 2, 1)
    assert actions.shape == (stepping._DRAWN, 2, engine.spaces.action_size)
    engine.reset()
    assert stepping._step([engine], [actions], 0.0) > 0


class EndingEngine:
    """Engine of 3 environments. An episode of the last one ends at every second step."""

    turns = 0

    def step(self, actions: np.ndarray):
        assert actions.shape == (3,)
        self.turns += 1
        terminated = np.array([False, False, self.turns % 2 == 0])
        return None, None, terminated, np.zeros(3, dtype=bool)


def test_reset_rows_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 2.0])
    monkeypatch.setattr(stepping.time, "perf_counter", lambda: next(clock))
    engine = EndingEngine()
    rate = stepping._step([engine], [np.zeros((stepping._DRAWN, 3), dtype=np.int64)], 1.0)
    assert rate == (3 * engine.turns - engine.turns // 2) / 2.0

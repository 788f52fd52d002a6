"""Every family preset learns as recorded: a change of the algorithm that alters learning or bits is seen here first."""

import json
from pathlib import Path

import pytest
from tests.presets.golden import CASES, GOLDEN, Outcome
from tests.recorded import packages_problem

from lockstep.presets.families import FAMILIES
from lockstep.processes.portable import portable_problem

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(portable_problem() is not None, reason="this processor can't give portable bits"),
    pytest.mark.extra("ale_py", "Box2D", "mujoco"),
]


def test_every_family_has_a_case() -> None:
    assert set(CASES) == set(FAMILIES)


@pytest.mark.parametrize("preset", CASES)
def test_short_runs_learn_as_recorded(run_cli, portable_server: dict[str, str], tmp_path: Path, preset: str) -> None:
    finished = run_cli(*CASES[preset].words(preset), env=portable_server)
    assert finished.rc == 0, finished
    outcome, recorded = Outcome.read(tmp_path / "runs" / preset), json.loads(GOLDEN.read_text())[preset]
    least = CASES[preset].least
    assert least is None or (outcome.curve[-1] or -1e9) >= least, outcome.curve
    problem = packages_problem()
    if problem is not None:
        pytest.skip(f"{problem}; the return is as high as it has to be")
    again = "if the change is deliberate, run `python -m tests.presets.golden` and explain it in CHANGELOG.md"
    assert outcome == Outcome(**recorded), again

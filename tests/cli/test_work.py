"""What a rank says when something goes wrong."""

import pytest

from lockstep.algorithm.non_finite import NonFinite
from lockstep.cli.work import _guarded
from lockstep.envs.engine import EnvironmentFailed
from lockstep.group.group import RankLost


def step() -> None:
    raise KeyError("wheel")


def fail_in_an_environment() -> int:
    try:
        step()
    except KeyError as error:
        raise EnvironmentFailed("environment 3 (Car-v0) failed: KeyError: 'wheel'") from error
    return 0


def test_a_failing_environment_is_one_line_behind_its_own_trace(capsys: pytest.CaptureFixture[str]) -> None:
    assert _guarded(1, fail_in_an_environment) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "Traceback (most recent call last):"
    assert "    step()" in said
    assert said[-2:] == ["KeyError: 'wheel'", "lockstep: environment 3 (Car-v0) failed: KeyError: 'wheel'"]
    assert len(said) < 10


def raising(error: Exception):
    def work() -> int:
        raise error

    return work


def test_what_all_ranks_find_is_told_by_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert [_guarded(rank, raising(NonFinite("too large"))) for rank in range(3)] == [3, 3, 3]
    assert capsys.readouterr().err == "lockstep: too large\n"
    assert _guarded(2, raising(RankLost("rank 0", "record", "it slept"))) == 4
    assert capsys.readouterr().err == "lockstep: rank 0 is lost in phase 'record': it slept\n"

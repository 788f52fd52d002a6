"""Error messages of a rank."""

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


def test_environment_error_is_one_line_after_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert _guarded(1, fail_in_an_environment) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "    step()" in lines
    assert lines[-2:] == ["KeyError: 'wheel'", "lockstep: environment 3 (Car-v0) failed: KeyError: 'wheel'"]
    assert len(lines) < 10


def raising(error: Exception):
    def work() -> int:
        raise error

    return work


def test_error_that_all_ranks_raise_is_printed_by_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert [_guarded(rank, raising(NonFinite("too large"))) for rank in range(3)] == [3, 3, 3]
    assert capsys.readouterr().err == "lockstep: too large\n"
    assert _guarded(2, raising(RankLost("rank 0", "record", "it slept"))) == 4
    assert capsys.readouterr().err == "lockstep: rank 0 is lost in phase 'record': it slept\n"

"""Restarts of ranks after faults: how many, from which checkpoint, on how many ranks."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lockstep.config import VERSION, Config
from lockstep.config.decode import decode, encode
from lockstep.experiment import start
from lockstep.experiment import supervise as module
from lockstep.experiment.supervise import RestartLimit, supervise
from lockstep.processes.exit_codes import DONE, FAILED, NON_FINITE
from lockstep.run import manifest, stop
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import CheckpointDamaged
from lockstep.runtime.launch import RanksNotStarted
from lockstep.runtime.watch import Outcome

CONFIG = decode({"env": {"id": "CartPole-v1", "engine": "gymnasium"}, "plan": {"shards": 4}}, Config())
Supervise = Callable[..., tuple[int, list[tuple[int, int]]]]


@pytest.fixture
def supervised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervise:
    """Function that supervises starts with these outcomes. Returns the exit code, and ranks and first iteration of each start.

    There is a checkpoint of every tenth iteration that was reached.
    """
    folder = RunFolder.create(tmp_path / "run", {"version": VERSION, **encode(CONFIG)}, {})
    monkeypatch.setattr(module, "_PAUSES", (0.0,))
    monkeypatch.setattr(manifest, "verify", lambda *arguments: {})

    def run(outcomes: Sequence[Outcome | OSError], sizes: Sequence[int] = (2,), restarts: int = 3):
        starts: list[tuple[int, int]] = []
        left = list(outcomes)

        def launch(command: Sequence[str], ranks: int, config: object) -> Outcome:
            starts.append((ranks, int(command[3])))
            outcome = left.pop(0)
            if isinstance(outcome, OSError):
                raise outcome
            newest = (outcome.iteration or 0) // 10 * 10
            if newest:
                monkeypatch.setattr(RunFolder, "checkpoints", lambda self: list(range(10, newest + 1, 10)))
            return outcome

        monkeypatch.setattr(module, "launch", launch)
        code = supervise(folder, sizes, 0, [], None, restarts)
        assert not left
        return code, starts

    return run


def fault(iteration: int) -> Outcome:
    return Outcome(FAILED, "rank 1 was killed by SIGKILL", iteration)


def test_ranks_start_again_from_the_newest_checkpoint(supervised: Supervise) -> None:
    code, starts = supervised([fault(4), fault(27), Outcome(DONE)])
    assert (code, starts) == (DONE, [(2, 0), (2, 0), (2, 20)])


def test_newest_checkpoint_is_kept_if_the_iteration_of_the_fault_is_unknown(
    supervised: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is unknown without memory for heartbeats. A start from iteration 0 would remove all checkpoints."""
    monkeypatch.setattr(RunFolder, "checkpoints", lambda self: [10, 20])
    unknown = fault(0)._replace(iteration=None)
    assert supervised([unknown, Outcome(DONE)]) == (DONE, [(2, 0), (2, 20)])
    assert supervised([unknown, unknown]) == (FAILED, [(2, 0), (2, 20)]), "twice from the same checkpoint"


def test_error_that_would_come_back_ends_the_run(supervised: Supervise) -> None:
    assert supervised([Outcome(NON_FINITE, "", 12)]) == (NON_FINITE, [(2, 0)])


def test_second_fault_in_the_same_iteration_ends_the_run(
    supervised: Supervise, capsys: pytest.CaptureFixture[str]
) -> None:
    assert supervised([fault(14), fault(14)]) == (FAILED, [(2, 0), (2, 10)])
    assert "not started again: this is the second fault before the end of iteration 14" in capsys.readouterr().err


def test_number_of_restarts_is_limited(supervised: Supervise, capsys: pytest.CaptureFixture[str]) -> None:
    code, starts = supervised([fault(12), fault(22), fault(32)], restarts=2)
    assert (code, [start for _, start in starts]) == (FAILED, [0, 10, 20])
    error = capsys.readouterr().err
    assert "starting 2 ranks again from iteration 20 (restart 2 of 2)" in error
    assert "the limit of 2 restarts within an hour was reached (--restarts); continue with: lockstep resume" in error


def test_no_restart_after_the_last_iteration(
    supervised: Supervise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rank may be killed while it waits for evaluations or closes environments."""
    monkeypatch.setattr(start, "iterations", lambda config: 20)
    assert supervised([fault(20)]) == (DONE, [(2, 0)])
    assert "is complete" in capsys.readouterr().out


def test_no_restart_if_none_is_allowed(supervised: Supervise) -> None:
    assert supervised([fault(12)], restarts=0) == (FAILED, [(2, 0)])


def test_no_restart_after_a_signal(supervised: Supervise, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stop, "_asked", 15)
    assert supervised([fault(12)]) == (FAILED, [(2, 0)])


def test_fewer_ranks_if_one_cannot_be_started(supervised: Supervise, capsys: pytest.CaptureFixture[str]) -> None:
    """As many times as needed, and this is no restart."""
    refused = RanksNotStarted(11, "Resource temporarily unavailable")
    code, starts = supervised([refused, refused, Outcome(DONE)], sizes=(4, 3, 2), restarts=0)
    assert (code, starts) == (DONE, [(4, 0), (3, 0), (2, 0)])
    assert capsys.readouterr().err.splitlines() == [
        f"lockstep: {size} ranks can't be started: Resource temporarily unavailable" for size in (4, 3)
    ]
    code, starts = supervised([refused, refused], sizes=(4, 2), restarts=0)
    assert (code, starts) == (FAILED, [(4, 0), (2, 0)])


def test_checkpoint_that_was_chosen_stays_until_training_begins(
    supervised: Supervise, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until then, the later ones are still there."""
    monkeypatch.setattr(RunFolder, "checkpoints", lambda self: [50])
    assert supervised([fault(0), Outcome(DONE, "", 3)])[1] == [(2, 0), (2, 0)]


def test_limit_counts_an_hour() -> None:
    now = 0.0
    limit = RestartLimit(2, lambda: now)
    assert limit.reason_to_end(1, 0) is None
    assert limit.reason_to_end(2, 0) is None
    assert limit.reason_to_end(3, 0) is not None
    now = 3601.0
    assert limit.reason_to_end(4, 0) is None
    assert (limit.used, limit.pause) == (1, 0.5)


def test_damaged_checkpoint_is_named_and_skipped(
    supervised: Supervise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def verify(path: Path) -> dict[str, object]:
        if path.name == "00000030":
            raise CheckpointDamaged("checkpoint 30 is damaged")
        return {}

    monkeypatch.setattr(manifest, "verify", verify)
    assert supervised([fault(37), Outcome(DONE)]) == (DONE, [(2, 0), (2, 20)])
    assert "lockstep: checkpoint 30 is damaged\n" in capsys.readouterr().err


def test_checkpoints_stay_if_all_are_damaged(
    supervised: Supervise, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A start from the beginning would remove them, and a disk that can't be read for a moment looks the same."""

    def verify(path: Path) -> dict[str, object]:
        raise CheckpointDamaged("it can't be read")

    monkeypatch.setattr(manifest, "verify", verify)
    assert supervised([fault(27)]) == (FAILED, [(2, 0)])
    assert capsys.readouterr().err.splitlines()[-1].endswith(" --iteration 0")

"""Trials of a search, whose results were made up."""

import shutil
from pathlib import Path

import pytest

from lockstep.sweep.search import Trials
from lockstep.sweep.values import read_search

pytestmark = pytest.mark.extra("optuna")
SPACES = read_search(["ppo.learning_rate=log(1e-5,1e-2)", "ppo.epochs=int(1,20)", "policy.hidden=[64,64],[128]"])


def score(values: dict[str, str]) -> float:
    return float(values["ppo.epochs"]) - 1000 * float(values["ppo.learning_rate"])


def trials(folder: Path, seed: int = 1, **rules: object) -> Trials:
    return Trials(folder, SPACES, seed, {"run.seed": seed, **rules})


def test_an_interrupted_search_finds_what_it_would_have_found(tmp_path: Path) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    whole.mkdir()
    parts.mkdir()
    one = trials(whole)
    while batch := one.next(2, 14):
        for number, values in batch:
            one.tell(number, score(values))
    for _ in range(7):
        asked = trials(parts).next(2, 14)  # by a process that was killed then
        again = trials(parts)
        assert again.next(2, 14) == asked
        for number, values in asked:
            again.tell(number, score(values))
    assert trials(parts).over() == one.over()
    assert [number for number, _ in one.over()] == list(range(14))
    assert len({str(values) for _, values in one.over()}) == 14
    assert trials(parts).next(2, 14) == []
    assert [number for number, _ in trials(parts).next(9, 16)] == [14, 15]


def test_what_failed_counts_and_is_not_tried_again(tmp_path: Path) -> None:
    own = trials(tmp_path)
    [(number, _)] = own.next(1, 1)
    own.tell(number, None)
    assert own.next(1, 1) == []
    assert [number for number, _ in own.over()] == [0]


def test_another_search_in_the_folder_is_refused(tmp_path: Path) -> None:
    trials(tmp_path, **{"ppo.clip": 0.2})
    with pytest.raises(ValueError, match=r"ppo.clip is 0.1: it was 0.2 .* choose another --out"):
        trials(tmp_path, **{"ppo.clip": 0.1})


class Killed(BaseException):
    """Raised in place of a kill."""


def test_a_kill_while_trials_are_drawn_changes_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, whole = tmp_path / "base", tmp_path / "whole"
    base.mkdir()
    first = trials(base)
    for number, values in first.next(10, 10):  # the sampler takes its first 10 at random
        first.tell(number, score(values))
    shutil.copytree(base, whole)
    expected = trials(whole).next(2, 12)
    assert [number for number, _ in expected] == [10, 11]
    writes: int
    left: int

    def counted(write):
        def counting(*arguments, **options):
            nonlocal writes
            writes += 1
            if writes > left:
                raise Killed
            return write(*arguments, **options)

        return counting

    finished = False
    for left in range(20):
        folder, writes = tmp_path / str(left), 0
        shutil.copytree(base, folder)
        killed = trials(folder)
        with monkeypatch.context() as patched:
            storage = killed._study._storage
            for name in ("create_new_trial", "set_trial_param", "set_study_user_attr"):
                patched.setattr(storage, name, counted(getattr(storage, name)))
            try:
                killed.next(2, 12)
                finished = True
            except Killed:
                pass
        assert trials(folder).next(2, 12) == expected, f"after {left} writes"
        if finished:
            break
    assert finished
    assert left == 1 + 2 + 2 * len(SPACES)

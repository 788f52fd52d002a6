"""Trials of a search, whose results were made up."""

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

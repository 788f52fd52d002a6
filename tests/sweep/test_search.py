"""Trials of a search with synthetic results."""

import re
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


def test_an_interrupted_search_gives_the_same_trials(tmp_path: Path) -> None:
    uninterrupted, interrupted = tmp_path / "uninterrupted", tmp_path / "interrupted"
    uninterrupted.mkdir()
    interrupted.mkdir()
    expected = trials(uninterrupted)
    while batch := expected.next(2, 14):
        for number, values in batch:
            expected.tell(number, score(values))
    for _ in range(7):
        batch = trials(interrupted).next(2, 14)  # in a process that was then killed
        resumed = trials(interrupted)
        assert resumed.next(2, 14) == batch
        for number, values in batch:
            resumed.tell(number, score(values))
    assert trials(interrupted).finished() == expected.finished()
    assert [number for number, _ in expected.finished()] == list(range(14))
    assert len({str(values) for _, values in expected.finished()}) == 14
    assert trials(interrupted).next(2, 14) == []
    assert [number for number, _ in trials(interrupted).next(9, 16)] == [14, 15]


def test_a_failed_trial_counts_and_is_not_repeated(tmp_path: Path) -> None:
    search = trials(tmp_path)
    [(number, _)] = search.next(1, 1)
    search.tell(number, None)
    assert search.next(1, 1) == []
    assert [number for number, _ in search.finished()] == [0]


def test_another_search_in_the_folder_is_refused(tmp_path: Path) -> None:
    trials(tmp_path, **{"ppo.clip": 0.2})
    with pytest.raises(ValueError, match=r"ppo.clip is 0.1: it was 0.2 .* choose another --out"):
        trials(tmp_path, **{"ppo.clip": 0.1})


@pytest.mark.parametrize(
    ("earlier", "later", "line"),
    [
        ({"--over": []}, {"--over": ["run.seed=1..2"]}, "--over is run.seed=1..2: it was none in the search"),
        ({"--over": ["run.seed=1..2"]}, {"--over": []}, "--over is none: it was run.seed=1..2 in the search"),
        (
            {"--search": ["ppo.clip=0.1,0.2", "ppo.epochs=int(1,2)"]},
            {"--search": ["ppo.clip=0.1,0.2"]},
            "--search is ppo.clip=0.1,0.2: it was ppo.clip=0.1,0.2 --search ppo.epochs=int(1,2) in the search",
        ),
        ({"policy.hidden": (64, 64)}, {"policy.hidden": (32,)}, "policy.hidden is [32]: it was [64, 64] in the search"),
    ],
)
def test_another_search_is_described_in_the_words_of_the_user(
    tmp_path: Path, earlier: dict[str, object], later: dict[str, object], line: str
) -> None:
    trials(tmp_path, **earlier)
    with pytest.raises(ValueError, match="^" + re.escape(f"{line} in {tmp_path}; choose another --out")):
        trials(tmp_path, **later)


class Killed(BaseException):
    """Exception that simulates the kill of the process."""


def test_a_kill_while_trials_are_sampled_changes_no_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base, uninterrupted = tmp_path / "base", tmp_path / "uninterrupted"
    base.mkdir()
    first = trials(base)
    for number, values in first.next(10, 10):  # the sampler draws its first 10 trials at random
        first.tell(number, score(values))
    shutil.copytree(base, uninterrupted)
    expected = trials(uninterrupted).next(2, 12)
    assert [number for number, _ in expected] == [10, 11]
    writes: int
    allowed: int

    def counted(write):
        def counting(*arguments, **options):
            nonlocal writes
            writes += 1
            if writes > allowed:
                raise Killed
            return write(*arguments, **options)

        return counting

    finished = False
    for allowed in range(20):
        folder, writes = tmp_path / str(allowed), 0
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
        assert trials(folder).next(2, 12) == expected, f"after {allowed} writes"
        if finished:
            break
    assert finished
    assert allowed == 2 + 2 + 2 * len(SPACES)

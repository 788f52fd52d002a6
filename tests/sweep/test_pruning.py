"""Decisions to prune trials, from synthetic metrics."""

import json
from pathlib import Path
from shutil import copytree

import pytest

from lockstep.config.compose import load
from lockstep.sweep.member import Member, make_member
from lockstep.sweep.pruning import Pruning
from lockstep.sweep.search import Trials
from lockstep.sweep.values import read_search

pytestmark = pytest.mark.extra("optuna")
TREE = {"rollout": {"steps": 128}, "run": {"total_steps": 20 * 1024}, "runtime": {"device": "cpu"}}


def make_trials(folder: Path) -> Trials:
    return Trials(folder, read_search(["ppo.clip=float(0.1,0.3)"]), 1, {})


def make_trial(folder: Path, number: int, returns: list[float | None]) -> list[Member]:
    """Create two runs of 20 iterations. The first has an iteration for each of `returns`."""
    members = [
        make_member(load(None, None, TREE), None, {"trial": number}, folder, f"trial-{number}-seed{seed}")
        for seed in (1, 2)
    ]
    for member in members:
        member.folder.path.mkdir(exist_ok=True)
    rows = [{"iteration": row, "return_mean_20": mean} for row, mean in enumerate(returns, 1)]
    (members[0].folder.path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return members


@pytest.fixture(name="five_trials", scope="module")
def fixture_five_trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five complete trials with returns of 1, 2, …, 20 over the iterations, and a batch of two, 5 and 6."""
    folder = tmp_path_factory.mktemp("trials")
    trials = make_trials(folder)
    for number, _ in trials.next(5, 5):
        members = make_trial(folder, number, [float(row) for row in range(1, 21)])
        assert Pruning(trials, {number: members}, print).update() == set()
        trials.tell(number, 20.0)
    assert [number for number, _ in trials.next(2, 7)] == [5, 6]
    return folder


@pytest.fixture(name="trials")
def fixture_trials(five_trials: Path, tmp_path: Path) -> Trials:
    """Copy `five_trials`, whose database needs seconds to fill, to `tmp_path`."""
    copytree(five_trials, tmp_path, dirs_exist_ok=True)
    return make_trials(tmp_path)


@pytest.mark.parametrize(
    ("returns", "tenth"),
    [
        ([9.0, 9.0] * 10, 5),  # 10 is the median at 5 tenths
        ([0.0] * 20, 3),  # the first comparison
        ([9.0, *[1.0] * 19], 3),  # the return at a tenth counts, not that between two
        ([None] * 7 + [1.0] * 13, 4),  # 20 episodes have ended in iteration 8 only
        ([float(row) for row in range(1, 21)], None),
        ([float(row) for row in range(1, 19)] + [0.0, 0.0], None),  # the highest return so far is compared
        ([20.0, 20.0] + [0.0] * 17, None),
        ([0.0] * 5, None),  # 3 tenths are not reached yet
    ],
)
def test_a_trial_is_pruned_at_the_first_tenth_below_the_median(
    tmp_path: Path, trials: Trials, returns: list[float | None], tenth: int | None
) -> None:
    lines: list[str] = []
    members = make_trial(tmp_path, 5, returns)
    pruning = Pruning(trials, {5: members, 6: []}, lines.append)
    assert pruning.update() == (set() if tenth is None else {member.name for member in members})
    assert pruning.pruned == ([] if tenth is None else [5])
    assert [member.folder.why_pruned() for member in members] == [lines[0].partition(": ")[2] if lines else None] * 2
    assert all(f"at {10 * (tenth or 0)}% of the budget" in line for line in lines)
    assert pruning.update() == (set() if tenth is None else {member.name for member in members})


def test_decisions_depend_neither_on_the_other_trials_of_a_batch_nor_on_interruptions(
    tmp_path: Path, trials: Trials
) -> None:
    good = make_trial(tmp_path, 6, [100.0] * 20)
    Pruning(trials, {6: good}, print).update()
    trials.tell(6, 100.0)  # trial 5 was interrupted meanwhile
    members = make_trial(tmp_path, 5, [9.0] * 9)  # 100 would be above it, but 8 is not
    assert Pruning(trials, {5: members}, print).update() == set()
    trials = make_trials(tmp_path)
    assert [number for number, _ in trials.next(2, 7)] == [5]
    pruning = Pruning(trials, {5: make_trial(tmp_path, 5, [9.0] * 20)}, print)
    assert pruning.update() == {member.name for member in members}
    again = Pruning(make_trials(tmp_path), {5: members}, print)  # a kill before `prune`
    assert again.update() == {member.name for member in members}
    trials.prune(5)
    assert trials.next(2, 7) == []
    assert [number for number, _ in trials.finished()] == list(range(7))


def test_a_run_that_resumes_from_an_earlier_iteration_reports_nothing_twice(tmp_path: Path, trials: Trials) -> None:
    members = make_trial(tmp_path, 5, [9.0] * 9)
    pruning = Pruning(trials, {5: members}, print)
    pruning.update()
    (members[0].folder.path / "metrics.jsonl").unlink()
    make_trial(tmp_path, 5, [9.0] * 6)
    assert pruning.update() == set()
    make_trial(tmp_path, 5, [9.0] * 10)
    assert pruning.update() == {member.name for member in members}

"""Files of the evaluations during training: the queue of checkpoints, the results, and the best checkpoint."""

import json
from pathlib import Path

import pytest

from lockstep.run.checkpoint_writer import remove_checkpoints_after, remove_old_checkpoints
from lockstep.run.evaluations import (
    BEST,
    EVALUATIONS,
    Best,
    Evaluations,
    best_checkpoint,
    is_due,
    read_best,
    remove_evaluations_after,
)
from lockstep.run.folder import RunFolder


@pytest.fixture(name="folder")
def fixture_folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {}, {})


def add_checkpoints(folder: RunFolder, *iterations: int) -> None:
    for iteration in iterations:
        folder.checkpoint(iteration).mkdir(parents=True)


def row(iteration: int, mean: float) -> dict[str, object]:
    return {"iteration": iteration, "return_mean": mean, "episodes": 5}


def evaluate(folder: RunFolder, **means: float) -> Evaluations:
    """Append evaluations, by iteration: `evaluate(folder, i20=3.0)`."""
    evaluations = Evaluations(folder, 20, 110)
    for name, mean in means.items():
        evaluations.append(row(int(name[1:]), mean))
    return evaluations


def test_last_iteration_is_evaluated() -> None:
    assert [iteration for iteration in range(1, 111) if is_due(iteration, 40, 110)] == [40, 80, 110]
    assert not is_due(110, None, 110)


def test_checkpoints_are_pending_until_they_are_evaluated(folder: RunFolder) -> None:
    add_checkpoints(folder, 20, 40, 50, 60, 110)
    evaluations = evaluate(folder)
    assert evaluations.pending() == [20, 40, 60, 110]
    evaluations.append(row(20, 1.0))
    assert evaluations.pending() == [40, 60, 110]
    evaluations.append(row(60, 1.0))  # an evaluation that was skipped is not made up for: the lines ascend
    assert evaluations.pending() == [110]


def test_the_last_checkpoint_of_a_run_that_ended_early_is_evaluated(folder: RunFolder) -> None:
    add_checkpoints(folder, 20, 33)
    evaluations = evaluate(folder, i20=1.0)
    assert evaluations.pending() == []
    (folder.checkpoint(33) / "state.json").write_text('{"complete": true}')
    assert evaluations.pending() == [33]


def test_the_first_of_equal_checkpoints_is_the_best(folder: RunFolder) -> None:
    assert read_best(folder) is None
    evaluate(folder, i20=-5.0, i40=3.0, i60=3.0, i80=float("nan"), i100=2.0)
    assert read_best(folder) == Best(40, 3.0, 5)
    assert json.loads((folder.path / BEST).read_text()) == {"iteration": 40, "return_mean": 3.0, "episodes": 5}
    assert [line["iteration"] for line in folder.evaluations()] == [20, 40, 60, 80, 100]


def test_without_evaluations_the_best_checkpoint_has_the_highest_training_return(folder: RunFolder) -> None:
    add_checkpoints(folder, 20, 40, 60)
    with pytest.raises(ValueError, match="has no best checkpoint"):
        best_checkpoint(folder)
    means = {10: 9.0, 20: None, 40: 3.0, 60: 2.0}
    lines = [json.dumps({"iteration": iteration, "return_mean_20": mean}) for iteration, mean in means.items()]
    (folder.path / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert best_checkpoint(folder) == 40
    evaluate(folder, i20=1.0, i60=0.5)
    assert best_checkpoint(folder) == 20
    folder.checkpoint(20).rmdir()
    assert best_checkpoint(folder) == 40, "the checkpoint of best.json is gone"


def test_a_broken_best_file_is_ignored(folder: RunFolder) -> None:
    for content in ("", "[]", "{}", '{"iteration": 1e999, "return_mean": 0, "episodes": 1}'):
        (folder.path / BEST).write_text(content)
        assert read_best(folder) is None
    evaluate(folder, i20=1.0)
    assert read_best(folder) == Best(20, 1.0, 5)


def test_rotation_keeps_the_best_and_pending_checkpoints(folder: RunFolder) -> None:
    add_checkpoints(folder, 20, 40, 60, 80, 100)
    evaluations = evaluate(folder, i20=9.0, i40=3.0)
    remove_old_checkpoints(folder, 1, evaluations.pending())
    assert folder.checkpoints() == [20, 60, 80, 100]
    remove_old_checkpoints(folder, 1)
    assert folder.checkpoints() == [20, 100]


def test_resuming_removes_later_evaluations(folder: RunFolder) -> None:
    add_checkpoints(folder, 20, 60, 80)
    evaluate(folder, i20=1.0, i40=5.0, i60=2.0, i80=9.0)
    remove_evaluations_after(folder, 80)
    assert (len(folder.evaluations()), read_best(folder)) == (4, Best(80, 9.0, 5))
    remove_checkpoints_after(folder, 60)
    remove_evaluations_after(folder, 60)
    # 40 was better than 60, but rotation has removed its checkpoint
    assert [line["iteration"] for line in folder.evaluations()] == [20, 40, 60]
    assert read_best(folder) == Best(60, 2.0, 5)
    remove_checkpoints_after(folder, 0)
    remove_evaluations_after(folder, 0)
    assert (folder.evaluations(), read_best(folder)) == ([], None)


def test_truncated_evaluation_is_repeated(folder: RunFolder) -> None:
    add_checkpoints(folder, 20, 40)
    evaluations = evaluate(folder, i20=1.0, i40=2.0)
    complete = (folder.path / EVALUATIONS).read_text()
    (folder.path / EVALUATIONS).write_text(complete[:-9])
    assert evaluations.pending() == [40]
    remove_evaluations_after(folder, 40)
    evaluations.append(row(40, 2.0))
    assert (folder.path / EVALUATIONS).read_text() == complete

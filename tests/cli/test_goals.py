"""`run.stop_at_return`: training ends in the same iteration on every plan, and the run is complete then."""

import json
from pathlib import Path

import pytest
from tests.live_runs import digests, rows

import lockstep

TASK = ("--env", "CartPole-v1", "--rollout.steps", 64, "--ppo.epochs", 1, "--ppo.minibatches", 4, "--plan.shards", 2)
SHORT = ("--total-steps", 20 * 8 * 64, "--run.progress", "off", "--run.checkpoint-every", 3)
GOAL = ("--run.stop-at-return", 28)


@pytest.fixture(scope="module", name="whole")
def fixture_whole(run_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a run that uses its budget, `whole`, and one that stops at its goal, `goal`."""
    folder = tmp_path_factory.mktemp("whole")
    run_in(folder, "train", *TASK, *SHORT, "--name", "whole", "--ranks", 1)
    run_in(folder, "train", *TASK, *SHORT, *GOAL, "--name", "goal", "--ranks", 1)
    return folder / "runs"


def first_at_goal(run: Path) -> int:
    return next(row["iteration"] for row in rows(run) if (row["return_mean_20"] or 0) >= GOAL[1])


@pytest.mark.slow
def test_run_ends_at_its_goal_and_is_complete(whole: Path, run_cli, monkeypatch: pytest.MonkeyPatch) -> None:
    last = first_at_goal(whole / "whole")
    assert 3 < last < 20, "the test shows nothing"
    assert digests(whole / "goal") == digests(whole / "whole")[:last]
    assert max(int(path.name) for path in (whole / "goal" / "checkpoints").iterdir()) == last
    monkeypatch.chdir(whole.parent)
    assert not lockstep.Run("goal").stopped
    assert lockstep.Run("goal").summary.status == "finished"
    resumed = run_cli("resume", "goal", cwd=whole.parent)
    text = f"runs/goal is complete: run.stop_at_return (28) was reached in iteration {last}\n"
    assert (resumed.rc, resumed.stdout) == (0, text)
    extended = run_cli("resume", "goal", "--total-steps", 10**6, cwd=whole.parent)
    problem = (
        "run.total_steps is 1000000: runs/goal ended before its budget was used up, by run.stop_at_return or a hook, "
    )
    assert (extended.rc, extended.stdout) == (2, "")
    assert extended.stderr.startswith(f"lockstep: {problem}and a larger budget does not continue it; ")
    state = json.loads((whole / "goal" / "starts.jsonl").read_text().splitlines()[-1])
    assert (state["how"], state["iteration"]) == ("done", last)


@pytest.mark.slow
@pytest.mark.parametrize("plan", [("--ranks", 2), ("--plan", "1:1"), ("--plan", "one-player", "--ranks", 2)])
def test_every_plan_ends_after_the_same_iteration(whole: Path, run_cli, tmp_path: Path, plan) -> None:
    done = run_cli("train", *TASK, *SHORT, *GOAL, *plan, "--name", "plan")
    assert done.rc == 0, done
    assert "ended: run.stop_at_return (28) was reached\n" in done.stdout
    assert digests(tmp_path / "runs" / "plan") == digests(whole / "goal")


@pytest.mark.slow
def test_run_resumed_from_an_earlier_checkpoint_ends_after_the_same_iteration(
    whole: Path, run_cli, tmp_path: Path
) -> None:
    run = tmp_path / "runs" / "again"
    evaluated = ("--run.evaluate-every", 18, "--run.evaluate-episodes", 1)
    assert run_cli("train", *TASK, *SHORT, *GOAL, *evaluated, "--run.keep", 9, "--name", "again", "--ranks", 1).rc == 0
    last = len(rows(run))
    (line,) = (run / "evaluations.jsonl").read_text().splitlines()
    assert json.loads(line)["iteration"] == last < 18, "the agent that reached the goal is evaluated"
    assert run_cli("resume", "again", "--iteration", 3, "--ranks", 2).rc == 0
    assert digests(run) == digests(whole / "goal")


@pytest.mark.slow
@pytest.mark.extra("envpool")
def test_players_are_one_iteration_ahead_with_a_lag_and_engines_that_can_not_be_restored_save(
    run_cli, tmp_path: Path
) -> None:
    short = (*SHORT[:-1], 50)  # no regular checkpoint
    lag = ("--env.engine", "envpool", "--plan.lag", 1)
    ends = []
    for name, plan in (("one", ("--ranks", 1)), ("two", ("--plan", "1:1"))):
        done = run_cli("train", *TASK, *short, *GOAL, *lag, *plan, "--name", name)
        assert done.rc == 0, done
        run = tmp_path / "runs" / name
        assert len(rows(run)) == first_at_goal(run) + 1
        assert [int(path.name) for path in (run / "checkpoints").iterdir()] == [len(rows(run))]
        ends.append(digests(run))
    assert ends[0] == ends[1]

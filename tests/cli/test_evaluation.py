"""`run.evaluate_every` from the command line: real training, real processes, real files."""

import json
import os
import re
import signal
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_loggers import records
from tests.live_runs import digests, reached, slow_hook, wait_for, words_of

WORDS = ("cartpole", "--rollout.steps", 32, "--ppo.minibatches", 2, "--ppo.epochs", 2)
WORDS += ("--runtime.compile", "off", "--run.progress", "off")

EVALUATED = ("--run.evaluate-every", 2, "--run.evaluate-episodes", 2)
METRICS = Path(__file__).parents[2] / "docs" / "metrics.md"


def evaluations(run: Path) -> list[dict[str, Any]]:
    """Evaluations so far, without the seconds of training."""
    path = run / "evaluations.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("\n")]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def evaluators(run: Path) -> list[int]:
    """Process ids of the processes that evaluate checkpoints of a run."""
    process_ids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = words_of(process)
            alive = process.joinpath("stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
        except OSError:
            continue
        if alive and b"evaluator" in words and bytes(run) in words:
            process_ids.append(int(process.name))
    return process_ids


def unexpected(stderr: str) -> list[str]:
    """Lines on stderr, except the one that announces waiting, which depends on the speed of the machine."""
    return [line for line in stderr.splitlines() if "press Ctrl-C" not in line]


@pytest.mark.slow
def test_without_evaluations_the_checkpoint_with_the_best_return_is_kept_also_by_later_starts(
    run_cli, tmp_path: Path
) -> None:
    noisy = (
        "--ppo.learning-rate",
        1e-6,
        "--run.keep",
        1,
        "--run.checkpoint-every",
        1,
        "--plan.shards",
        2,
        "--seed",
        4,
    )
    run = tmp_path / "runs" / "run"
    for words in (
        ("train", *WORDS, *noisy, "--name", "run", "--total-steps", 256 * 8, "--ranks", 1),
        ("resume", "run", "--total-steps", 256 * 16, "--ranks", 2),
    ):
        finished = run_cli(*words)
        assert finished.rc == 0, finished
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        best = max((row["return_mean_20"], row["iteration"]) for row in rows if row["return_mean_20"] is not None)[1]
        assert sorted(int(path.name) for path in (run / "checkpoints").iterdir()) == sorted({best, len(rows)})
        assert best < len(rows), "the test needs a run that becomes worse"
    assert f"iteration {best}" in run_cli("eval", run, "--best", "--episodes", 1).stdout


@pytest.mark.slow
@pytest.mark.extra("tensorboard")
def test_evaluation_changes_no_bit_and_keeps_the_best_checkpoint(run_cli, tmp_path: Path) -> None:
    kept = ("--total-steps", 1792, "--run.keep", 1)
    done = run_cli("train", *WORDS, *EVALUATED, *kept, "--name", "evaluated")
    assert (done.rc, unexpected(done.stderr)) == (0, []), done
    assert run_cli("train", *WORDS, *kept, "--name", "plain").rc == 0
    run = tmp_path / "runs" / "evaluated"
    assert digests(run) == digests(tmp_path / "runs" / "plain")
    rows = evaluations(run)
    assert [row["iteration"] for row in rows] == [2, 4, 6, 7]
    assert [row["digest"] for row in rows] == [digests(run)[row["iteration"] - 1] for row in rows]
    best = max(rows, key=lambda row: row["return_mean"])
    assert json.loads((run / "best.json").read_text()) == {
        name: best[name] for name in ("iteration", "return_mean", "episodes")
    }
    assert [int(path.name) for path in sorted((run / "checkpoints").iterdir())] == sorted({best["iteration"], 7})
    (table,) = re.findall(r"^\| evaluation \|.*\n((?:\|.*\n)+)", METRICS.read_text(), re.MULTILINE)
    cells = " ".join(line.split("|")[1] for line in table.splitlines())
    assert set(re.findall(r"`(\w+)`", cells)) == {*rows[0], "seconds"}
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    curve = EventAccumulator(str(run / "tb")).Reload().Scalars("evaluation/sampled_return_mean")
    assert [(point.step, point.value) for point in curve] == [
        (row["env_steps"], row["sampled_return_mean"]) for row in rows
    ]
    assert not (run / "logs").exists()
    for command in (("eval", "evaluated", "--episodes", 2), ("play", "evaluated", "--video")):
        shown = run_cli(*command, "--best")
        assert shown.rc == 0, shown
        assert re.search(rf"iteration[ -]0*{best['iteration']}\b", shown.stdout), shown
    refused = run_cli("eval", "evaluated", "--best", "--iteration", 7)
    assert (refused.rc, refused.stderr) == (2, "lockstep: --iteration can't be combined with --best\n")


@pytest.mark.slow
@pytest.mark.extra("wandb", "trackio")
def test_trackers_get_evaluations_over_their_own_steps(run_cli, tmp_path: Path) -> None:
    words = ("--total-steps", 1024, "--name", "first", "--run.loggers", "wandb", "trackio")
    done = run_cli("train", *WORDS, *EVALUATED, *words, env={"WANDB_MODE": "offline"})
    assert (done.rc, unexpected(done.stderr)) == (0, []), done
    run = tmp_path / "runs" / "first"
    expected = [(row["env_steps"], row["sampled_return_mean"]) for row in evaluations(run)]
    assert len(expected) == 2
    history = [record.history for file in run.glob("wandb/offline-run-*/*.wandb") for record in records(file)]
    items = [
        {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in one.item} for one in history
    ]
    curve = [
        (item["evaluation/env_steps"], item["evaluation/sampled_return_mean"])
        for item in items
        if "evaluation/env_steps" in item
    ]
    assert curve == expected
    assert sum("train/loss" in item for item in items) == 4
    with sqlite3.connect(run / "trackio" / "lockstep.db") as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    database.close()
    name = "evaluation/sampled_return_mean"
    assert [(step, json.loads(row)[name]) for step, row in rows if name in json.loads(row)] == expected


@pytest.mark.slow
def test_a_resumed_run_has_the_evaluations_of_an_uninterrupted_one(run_cli, begin, tmp_path: Path) -> None:
    words = (*WORDS, "--ranks", 2, "--plan.shards", 2, "--plan", "1:1", "--plan.lag", 1, "--total-steps", 6144)
    words += ("--run.evaluate-every", 4, "--run.evaluate-episodes", 1, "--run.keep", 99)
    uninterrupted, resumed = tmp_path / "runs" / "whole", tmp_path / "runs" / "again"
    assert run_cli("train", *words, "--name", "whole").rc == 0
    process = begin("train", *words, "--name", "again", "--out", tmp_path / "runs")
    wait_for(reached(resumed, 4), "4 iterations")
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(100) == 75
    assert not evaluators(resumed)
    stopped = evaluations(resumed)
    assert len(stopped) < 6
    assert run_cli("resume", "again", "--iteration", 4).rc == 0
    assert evaluations(resumed) == evaluations(uninterrupted)
    assert evaluations(resumed)[: len(stopped)] == stopped
    assert digests(resumed) == digests(uninterrupted)
    assert (resumed / "best.json").read_text() == (uninterrupted / "best.json").read_text()


@pytest.mark.slow
def test_training_goes_on_after_the_evaluating_process_was_killed(begin, run_cli, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "first"
    endless = ("--total-steps", 10**7, "--name", "first", "--out", tmp_path / "runs", *slow_hook(tmp_path))
    process = begin("train", *WORDS, *EVALUATED, *endless)
    wait_for(lambda: evaluators(run), "a process that evaluates")
    (evaluator,) = evaluators(run)
    os.kill(evaluator, signal.SIGKILL)
    wait_for(lambda: not evaluators(run), "no process")
    wait_for(reached(run, len(digests(run)) + 20), "20 more iterations")
    os.kill(process.pid, signal.SIGTERM)
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 75
    (line,) = (line for line in unexpected(stderr) if "evaluation" in line)
    assert line.startswith("lockstep: evaluation: the process exited with code -9 (details: ")
    assert line.endswith("; training continues without it")
    # nothing waits for a process that has ended: only the newest checkpoints and the best are kept
    assert len(list((run / "checkpoints").iterdir())) <= 4


@pytest.mark.slow
def test_ctrl_c_skips_what_remains_after_the_last_iteration(begin, tmp_path: Path) -> None:
    words = ("--total-steps", 512, "--run.evaluate-every", 1, "--run.evaluate-episodes", 10**6, "--name", "first")
    process = begin("train", *WORDS, *words, "--out", tmp_path / "runs")
    assert process.stderr.readline().startswith("lockstep: waiting for evaluation to finish, at most 3600 s")
    os.kill(process.pid, signal.SIGINT)
    stdout, stderr = process.communicate(timeout=100)
    assert process.returncode == 0, "training had ended"
    assert "lockstep: evaluation: stopped before the work was finished; not evaluated: iterations 1, 2\n" in stderr
    assert stdout.startswith("done: 2 iterations")
    assert not evaluators(tmp_path / "runs" / "first")


@pytest.mark.slow
def test_the_evaluating_process_ends_with_rank_0(begin, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "first"
    process = begin("train", *WORDS, *EVALUATED, "--total-steps", 10**7, "--name", "first", "--out", tmp_path / "runs")
    wait_for(lambda: evaluators(run) and len(digests(run)) > 3, "a process that evaluates")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not evaluators(run), "no process")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("0",), "run.evaluate_every is 0: it must be at least 1, or none for no evaluation"),
        (("2", "--run.evaluate-episodes", "0"), "run.evaluate_episodes is 0: it must be at least 1 and below 2**53"),
        pytest.param(
            ("2", "--env.engine", "envpool", "--run.checkpoint-every", "4"),
            "run.evaluate_every is 2: env.engine 'envpool' begins new episodes at every checkpoint, so it must be a multiple of "
            "run.checkpoint_every, which is 4; set it to 4, or env.engine to 'gymnasium'",
            marks=pytest.mark.extra("envpool"),
        ),
    ],
)
def test_invalid_values_are_reported_in_one_line(words: tuple[str, ...], message: str, run_cli, tmp_path: Path) -> None:
    done = run_cli("train", *WORDS, "--run.evaluate-every", *words)
    assert (done.rc, done.stdout, done.stderr) == (2, "", f"lockstep: {message}\n")
    assert not (tmp_path / "runs").exists()

"""`lockstep sweep`: grids and searches, interrupted and repeated."""

import csv
import json
import os
import signal
from pathlib import Path

import pytest
from tests.cli.test_restarts import FAULTY
from tests.live_runs import digests, wait_for, words_of

SHORT = (
    *("cartpole", "--total-steps", 2560, "--rollout.steps", 32, "--ppo.minibatches", 1, "--plan.shards", 1),
    *("--run.checkpoint-every", 2, "--runtime.compile", "off", "--out", "found"),
)
GRID = ("--over", "run.seed=1..2", "--over", "ppo.epochs=1,2")


def running_members(sweep: Path) -> list[int]:
    """Process ids of the runs of a sweep that are being trained."""
    process_ids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = words_of(process)
            in_sweep_folder = process.joinpath("cwd").readlink() == sweep.parent
        except OSError:
            continue
        if b"resume" in words and in_sweep_folder:
            process_ids.append(int(process.name))
    return process_ids


@pytest.fixture(scope="module", name="uninterrupted")
def fixture_uninterrupted(run_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a complete sweep."""
    folder = tmp_path_factory.mktemp("sweep")
    run_in(folder, "sweep", *SHORT[:-1], "whole", *GRID, "--jobs", 2)
    return folder / "whole"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_interrupted_sweep_resumes_to_the_same_digests(
    run_cli, begin, tmp_path: Path, uninterrupted: Path, number: int
) -> None:
    longer = [*SHORT[:2], 2560, *SHORT[3:]]
    # runs that are forked end with the server's connection, not by what the sweep does for that
    process = begin("sweep", *longer, *GRID, "--jobs", 2, cold=number == signal.SIGKILL)
    folder = tmp_path / "found"
    wait_for(lambda: any(folder.glob("runs/*/checkpoints/*")), "a checkpoint")
    process.send_signal(number)
    process.communicate(timeout=60)
    wait_for(lambda: not running_members(folder), "no run is left")
    # the sweep may have completed before the signal
    assert process.returncode in ((75, 0) if number == signal.SIGINT else (-signal.SIGKILL,))
    again = run_cli("sweep", *longer, *GRID, "--jobs", 2)
    assert again.rc == 0, again
    names = sorted(path.name for path in (folder / "runs").iterdir())
    assert names == [f"seed-{seed}_epochs-{epochs}" for seed in (1, 2) for epochs in (1, 2)]
    for name in names:
        assert digests(folder / "runs" / name) == digests(uninterrupted / "runs" / name)
        assert len(digests(folder / "runs" / name)) == 10


@pytest.mark.slow
def test_grid_writes_tables_and_is_not_trained_twice(run_cli, tmp_path: Path) -> None:
    words = (*SHORT, "--over", "run.seed=1..2")
    finished = run_cli("sweep", *words)
    assert finished.rc == 0, finished
    lines = finished.stdout.splitlines()
    assert lines[0].split() == ["done", "return", "quartiles", "seconds", "steps"]
    assert lines[1].split()[:3] == ["2", "of", "2"]
    with (tmp_path / "found/runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["run"], row["run.seed"], row["state"]) for row in rows] == [
        ("seed-1", "1", "done"),
        ("seed-2", "2", "done"),
    ]
    assert [row["digest"] for row in rows] == [digests(tmp_path / "found/runs" / row["run"])[-1] for row in rows]
    summary = json.loads((tmp_path / "found/summary.json").read_text())
    assert summary["rows"][0]["return_median"] == pytest.approx(sum(float(row["return"]) for row in rows) / 2)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("found/runs/*/metrics.jsonl")}
    again = run_cli("sweep", *words)
    assert (again.rc, again.stdout) == (0, finished.stdout)
    assert {path: path.stat().st_mtime_ns for path in times} == times
    other = run_cli("sweep", *words, "--ppo.epochs", 3)
    assert (other.rc, other.stdout) == (2, "")
    assert other.stderr.startswith("lockstep: ppo.epochs is 3: it was 10 when found/runs/seed-1 was created")


@pytest.mark.slow
def test_failed_run_is_named_and_the_others_are_trained(run_cli, tmp_path: Path) -> None:
    # a step of this size ends in numbers that are not finite
    words = ("--over", "ppo.learning_rate=1e38,1e-3", "--jobs", 1, "--ppo.max-grad-norm", "none")
    finished = run_cli("sweep", *SHORT, *words)
    assert finished.rc == 1, finished
    assert "learning_rate-0.001: done" in finished.stderr
    last = finished.stderr.splitlines()[-1]
    assert last.startswith("lockstep: learning_rate-1e38 failed (3): lockstep: "), last


@pytest.mark.slow
@pytest.mark.extra("optuna")
@pytest.mark.parametrize("restarts", [0, 1])
def test_runs_start_again_as_often_as_the_user_allows(run_cli, tmp_path: Path, restarts: int) -> None:
    (tmp_path / "faulty_env.py").write_text(FAULTY)
    env = ("--env", "Faulty-v0", "--env.module", "faulty_env")
    options = f"{{kind: segfault, at: 40, mark: {tmp_path / 'mark'}}}"
    sweep = (*SHORT[1:], "--env.options", options, "--over", "run.seed=1,2", "--jobs", 1, "--restarts", restarts)
    done = run_cli("sweep", *env, *sweep)
    logs = {number: (tmp_path / f"found/logs/seed-{number}.log").read_text() for number in (1, 2)}
    assert "starting again" not in logs[2]
    if restarts:
        assert done.rc == 0, done
        assert logs[1].count("(restart 1 of 1)") == 1
    else:
        assert done.rc == 1
        assert "seed-1 failed" in done.stderr
        assert "starting again" not in logs[1]


def test_search_trains_the_requested_trials(run_cli, tmp_path: Path) -> None:
    words = (*SHORT, "--search", "ppo.epochs=int(1,2)", "--over", "run.seed=1..2", "--trials")
    finished = run_cli("sweep", *words, 1)
    assert finished.rc == 0, finished
    assert sorted(path.name for path in (tmp_path / "found/runs").iterdir()) == ["trial-0000-seed1", "trial-0000-seed2"]
    assert finished.stdout.splitlines()[0].split()[:3] == ["trial", "epochs", "done"]
    again = run_cli("sweep", *words, 1)
    assert (again.rc, again.stdout) == (0, finished.stdout)


@pytest.mark.slow
@pytest.mark.extra("optuna")
def test_run_that_is_stopped_from_outside_is_continued_by_the_next_call(begin, run_cli, tmp_path: Path) -> None:
    words = [
        *SHORT[:2],
        25_600,
        *SHORT[3:],
        "--search",
        "ppo.epochs=int(1,2)",
        "--over",
        "run.seed=1..2",
        "--trials",
        1,
    ]
    process = begin("sweep", *words, "--jobs", 1)
    wait_for(lambda: any((tmp_path / "found").glob("runs/*-seed1/checkpoints/*")), "a checkpoint")
    (member,) = running_members(tmp_path / "found")
    os.kill(member, signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 75, out + err
    assert "stopped before the end of trial-0000-seed1; run the same command again to continue" in out
    assert run_cli("sweep", *words).rc == 0
    with (tmp_path / "found/runs.csv").open() as file:
        assert [(row["run"][-5:], row["state"]) for row in csv.DictReader(file)] == [
            ("seed1", "done"),
            ("seed2", "done"),
        ]


@pytest.mark.slow
@pytest.mark.extra("optuna")
def test_a_search_needs_no_seeds(run_cli, tmp_path: Path) -> None:
    finished = run_cli("sweep", *SHORT, "--search", "ppo.learning_rate=log(1e-4,1e-2)", "--trials", 2)
    assert finished.rc == 0, finished
    assert sorted(path.name for path in (tmp_path / "found/runs").iterdir()) == ["trial-0000", "trial-0001"]
    assert finished.stdout.splitlines()[0].split()[:3] == ["trial", "learning_rate", "done"]


@pytest.mark.slow
@pytest.mark.extra("optuna")
def test_a_trial_with_a_low_return_is_pruned_and_not_trained_again(run_cli, tmp_path: Path) -> None:
    import optuna

    words = (*SHORT, "--search", "ppo.epochs=int(1,2)", "--over", "run.seed=1..2", "--jobs", 1, "--prune", "--trials")
    assert run_cli("sweep", *words, 1).rc == 0
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{tmp_path / 'found/trials.db'}")
    [first] = study.trials
    assert sorted(first.intermediate_values) == list(range(first.last_step - len(first.intermediate_values) + 1, 11))
    study.add_trials([  # the returns of CartPole do not exceed 500
        optuna.trial.create_trial(
            params=first.params,
            distributions=first.distributions,
            value=1000.0,
            intermediate_values=dict.fromkeys(range(1, 11), 1000.0),
        )
        for _ in range(4)
    ])  # fmt: skip
    found = run_cli("sweep", *words, 6)
    assert found.rc == 0, found
    assert "trial 5 pruned: return " in found.stderr
    assert "trial-0005-seed1: pruned, return " in found.stderr
    assert "trial-0005-seed2:" not in found.stderr, "the second seed is not trained"
    assert next(line for line in found.stdout.splitlines() if line.split()[:1] == ["5"]).split()[2] == "pruned"
    with (tmp_path / "found/runs.csv").open() as file:
        states = {row["run"]: row["state"] for row in csv.DictReader(file)}
    pruned = {"trial-0005-seed1": "pruned", "trial-0005-seed2": "pruned"}
    assert states | pruned == states
    assert json.loads((tmp_path / "found/summary.json").read_text())["rows"][5]["pruned"] == 2
    listed = json.loads(run_cli("runs", ".", "--state", "pruned", "--sort", "name", "--json").stdout)
    assert listed[-1]["path"] == "found/runs/trial-0005-seed2"  # the first seed may be done before it can be ended
    assert "below the median" in listed[-1]["why"]
    assert "pruned by its search: return " in run_cli("watch", listed[-1]["path"]).stdout
    again = run_cli("sweep", *words, 6)
    assert (again.rc, again.stdout) == (0, found.stdout)
    assert "trial-0005" not in again.stderr
    other = run_cli("sweep", *(word for word in words if word != "--prune"), 6)
    assert other.rc == 2
    assert "--prune is not set: it was True in the search in found" in other.stderr


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--over", "run.seed=1..3", "--prune"], "--prune: it ends trials of a search early; --search"),
        (["--over", "run.sed=1"], "did you mean --run.seed"),
        (["--over", "ppo.epochs=1,two"], "ppo.epochs is 'two'"),
        (["--over", "ppo.minibatches=1,7"], "ppo.minibatches is 7: it must divide"),
        (["--over", "ppo.clip=0.1,1e-1"], "two of the combinations are the same run"),
        (["--over", "run.seed=1..3", "--seed", "1"], "run.seed: it is given as a flag and in --over"),
        (["--over", "run.seed=1", "--name", "x"], "run.name: a sweep names its runs itself"),
        (["--over", "run.seed=1..3", "--trials", "3"], "--search"),
        (["--search", "ppo.epochs=int(1,3)"], "--trials"),
        (["--search", "ppo.epochs=float(1,5)", "--trials", "2"], "ppo.epochs is '3.47"),
        (["--search", "ppo.epochs=int(1,3)", "--trials", "2", "--over", "ppo.clip=0.1"], "only run.seed"),
        ([], "--over is missing"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line_and_write_no_files(
    run_cli, tmp_path: Path, words: list[str], part: str
) -> None:
    finished = run_cli("sweep", "cartpole", *words)
    assert (finished.rc, finished.stdout) == (2, "")
    assert len(finished.stderr.splitlines()) == 1, finished.stderr
    assert part in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_fits_80_columns_and_launchers_are_refused(run_cli) -> None:
    shown = run_cli("sweep", "--help", env={"COLUMNS": "80"})
    assert shown.rc == 0
    assert max(map(len, shown.stdout.splitlines())) <= 80
    refused = run_cli("sweep", "cartpole", "--over", "run.seed=1", env={"RANK": "0", "WORLD_SIZE": "1"})
    assert refused.rc == 2
    assert "without torchrun" in refused.stderr

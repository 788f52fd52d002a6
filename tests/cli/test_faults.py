"""Environments that fail and are replaced, from the command line: the run continues, says so, and can be resumed."""

import json
import shutil
from pathlib import Path

import pytest
from tests.envs.failing import ENV_ID, seed_of_episode
from tests.live_runs import digests

from lockstep.cli.main import main

ITERATIONS = 4
SHAPE = (
    *("--plan.shards", 2, "--env.count", 4, "--rollout.steps", 16, "--ppo.epochs", 1, "--run.progress", "off"),
    *("--total-steps", 64 * ITERATIONS, "--run.checkpoint-every", 1, "--run.keep", ITERATIONS),
)
LAST_ROW = {"failing": seed_of_episode(1, 4, 2, 4), "at": 4}
"""Fault of environment 2 in the last row of iteration 2: its episodes have 7 rows, with the reset row."""


def words_of(root: Path, tmp_path: Path, kind: str, name: str, *more: object) -> list[object]:
    shutil.copy(root / "tests/envs/failing.py", tmp_path / "failing.py")
    options = json.dumps({"kind": kind, **LAST_ROW})
    words = ["train", "--env", ENV_ID, "--env.module", "failing", "--env.options", options, *SHAPE]
    return [*words, "--out", tmp_path, "--name", name, *more]


def faults_of(run: Path) -> list[int]:
    return [json.loads(line)["env_faults"] for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_run_goes_on_and_says_that_it_is_not_reproducible(run_cli, root: Path, tmp_path: Path) -> None:
    replace = ("--env.on-fault", "replace")
    done = run_cli(*words_of(root, tmp_path, "exit", "run", *replace, "--ranks", 1))
    assert done.rc == 0, done
    assert "the process of environment 2 (exit code 7)" in done.stderr
    assert "died during step: the environment is replaced (fault 1 of at most 10 within an hour" in done.stderr
    assert "again" not in done.stderr  # no restart
    line = "faults: environments failed 1 time and were replaced: the config alone does not reproduce this run"
    assert line in done.stdout.splitlines()
    run = tmp_path / "run"
    assert faults_of(run) == [0, 1, 1, 1]

    # the fault comes back at the same place, so here the digests are equal
    whole = digests(run)
    split = run_cli(*words_of(root, tmp_path, "raise", "split", *replace, "--plan", "one-trainer", "--ranks", 3))
    assert split.rc == 0, split
    assert digests(tmp_path / "split") == whole
    for iteration, ranks in ((1, 2), (2, 1)):
        resumed = run_cli("resume", run, "--env.module", "failing", "--iteration", iteration, "--ranks", ranks)
        assert resumed.rc == 0, resumed
        assert digests(run) == whole
        assert faults_of(run) == [0, 1, 1, 1]

    refused = run_cli("verify", run, "--env.module", "failing")
    assert refused.rc == 2
    assert "environments failed and were replaced from iteration 2 on" in refused.stderr
    assert run_cli("verify", run, "--env.module", "failing", "--iterations", 1).rc == 0
    assert run_cli("report", run).rc == 0
    page = " ".join((run / "report.html").read_text().split())
    assert "can't be reproduced from its config alone: its environments failed 1 time and were replaced" in page


def test_environment_that_hangs_is_replaced_before_the_rank_counts_as_hanging(
    run_cli, root: Path, tmp_path: Path
) -> None:
    words = words_of(root, tmp_path, "hang", "run", "--env.on-fault", "replace", "--ranks", 1)
    done = run_cli(*words, "--runtime.timeout", 6)
    assert done.rc == 0, done
    limit = "within the smaller of env.timeout and runtime.timeout / 2 = 3 seconds: the environment is replaced"
    assert limit in done.stderr
    assert faults_of(tmp_path / "run") == [0, 1, 1, 1]
    assert "again" not in done.stderr


def test_run_moves_to_processes_per_environment(run_cli, root: Path, tmp_path: Path) -> None:
    words = words_of(root, tmp_path, "none", "run", "--env.engine", "gymnasium", "--ranks", 1)
    assert run_cli(*words).rc == 0
    run = tmp_path / "run"
    whole = digests(run)
    moved = ("--env.module", "failing", "--iteration", 2, "--env.engine", "gymnasium-async")
    resumed = run_cli("resume", run, *moved, "--env.on-fault", "replace")
    assert resumed.rc == 0, resumed
    assert digests(run) == whole
    assert '"engine": "gymnasium-async"' in (run / "config.json").read_text()
    refused = run_cli("resume", run, "--env.module", "failing", "--iteration", 2, "--env.engine", "envpool")
    assert refused.rc == 2
    assert refused.stderr == (
        "lockstep: env.engine is 'envpool': a run with 'gymnasium-async' keeps it; resume accepts another one only between 'gymnasium' and "
        "'gymnasium-async', whose episodes are the same\n"
    )


def test_too_many_faults_end_the_run(run_cli, root: Path, tmp_path: Path) -> None:
    words = words_of(root, tmp_path, "raise", "run", "--env.on-fault", "replace", "--env.max-faults", 1, "--ranks", 1)
    words[words.index("--env.options") + 1] = '{"kind": "raise", "failing": -2, "at": 2}'
    done = run_cli(*words)
    assert done.rc == 1, done
    last = done.stderr.splitlines()[-1]
    assert last.startswith("lockstep: environment ")
    assert last.endswith("this is fault 2 within an hour, and env.max_faults is 1")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("--env.engine", "gymnasium-vector"),
            "env.on_fault is 'replace': it needs an engine with a process per environment, 'gymnasium-async', but env.engine is "
            "'gymnasium-vector'; use 'gymnasium-async'",
        ),
        pytest.param(
            ("--env", "mpe2/simple_spread_v3", "--env.count", "6"),
            "env.on_fault is 'replace': it needs an engine with a process per environment, 'gymnasium-async', but env.engine is "
            "'pettingzoo'; leave it out",
            marks=pytest.mark.extra("pettingzoo", "mpe2"),
        ),
    ],
)
def test_engine_without_processes_is_refused(
    words: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "--env.on-fault", "replace", "--ranks", "1", "--out", str(tmp_path), *words]
    assert main(arguments) == 2
    assert capsys.readouterr().err == f"lockstep: {line}\n"
    assert not list(tmp_path.iterdir())

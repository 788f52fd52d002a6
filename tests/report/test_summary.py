"""The summary of a run."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep import presets
from lockstep.config import VERSION
from lockstep.presets.families import FAMILIES
from lockstep.report.summary import ReturnMilestone, RunSummary, summarize
from lockstep.run.folder import RunFolder

SHORT = (
    *("--total-steps", "3000", "--rollout.steps", "32", "--ppo.minibatches", "1"),
    *("--run.checkpoint-every", "5", "--runtime.compile", "off"),
)


def read_summary(path: Path) -> RunSummary:
    return summarize(RunFolder.open(path))


def test_the_command_repeats_the_run(run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    words = (*SHORT, "--ppo.clip", "0.1", "--env.options", "{sutton_barto_reward: false}", "--policy.hidden", "16", "8")
    assert run_cli("train", "cartpole", *words, "--env.per-rank", "4", "--ranks", "2", "--name", "first")[0] == 0
    first = read_summary(tmp_path / "runs/first")
    assert first.command is not None
    repeat_command = [*shlex.split(first.command)[1:], "--name", "again"]
    assert repeat_command[:2] == ["train", "cartpole"]
    assert run_cli(*repeat_command)[0] == 0
    second = read_summary(tmp_path / "runs/again")
    assert len(first.digest) == 64
    assert second.digest == first.digest
    assert second.command == first.command
    # the command contains --env.count or --ppo.clip already: a flag given twice is an error
    assert run_cli("train", *repeat_command[2:-2], "--env.count", "8", "--ppo.clip", "0.2", "--name", "none")[0] == 2


def test_summary_of_results_and_settings(run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    words = ("--run.solved-return", "20", "--ranks", "1", "--name", "first", "--env.engine", "gymnasium")
    assert run_cli("train", "cartpole", *SHORT, *words)[0] == 0
    summary = read_summary(tmp_path / "runs/first")
    rows = [json.loads(line) for line in (tmp_path / "runs/first/metrics.jsonl").read_text().splitlines()]
    assert (summary.status, summary.iteration, summary.iterations, summary.checkpoint) == ("finished", 11, 11, 11)
    assert (summary.env_steps, summary.digest) == (rows[-1]["env_steps"], rows[-1]["digest"])
    assert summary.checkpoint_digest == summary.digest
    assert summary.final is not None
    assert summary.best is not None
    assert summary.solved is not None
    assert (summary.final.value, summary.final.iteration) == (rows[-1]["return_mean_20"], 11)
    assert sum(summary.returns) / 20 == pytest.approx(summary.final.value)
    means = [row["return_mean_20"] for row in rows if row["return_mean_20"] is not None]
    assert summary.best.value == max(means)
    assert summary.solved.value == next(mean for mean in means if mean >= 20)
    assert summary.solved.seconds <= summary.seconds
    assert summary.expected is not None
    assert summary.expected.startswith("mean return of 475 over the last 20 episodes")
    origins = {setting.name: setting.origin for setting in summary.settings}
    assert origins["run.solved_return"] == origins["run.total_steps"] == "set"
    assert origins["plan.shards"] == "preset"
    assert origins["env.count"] == origins["policy.activation"] == "default"
    assert origins["env.engine"] == "set", "set by the user, although its default is auto"
    assert origins["policy.squash"] == "decided"
    assert summary.machine.packages["torch"]
    assert summary.machine.ranks == 1
    assert (summary.evaluated, summary.extended, summary.exact) == (None, False, True)
    assert run_cli("resume", "first", "--total-steps", "4000")[0] == 0
    assert read_summary(tmp_path / "runs/first").extended


def make_run(tmp_path: Path, metrics: str = "", **more: object) -> Path:
    """Create a minimal run folder."""
    tree: dict[str, object] = {"version": VERSION, "run": {"total_steps": 4096}, "runtime": {"compile": "auto"}, **more}
    RunFolder.create(tmp_path / "run", tree, {})
    (tmp_path / "run/metrics.jsonl").write_text(metrics)
    return tmp_path / "run"


def test_summary_of_a_run_that_has_not_started(tmp_path: Path) -> None:
    summary = read_summary(make_run(tmp_path))
    assert (summary.status, summary.iteration, summary.iterations, summary.digest) == ("unfinished", 0, 2, "")
    assert (summary.final, summary.best, summary.solved, summary.checkpoint, summary.steps_per_second) == (None,) * 5
    assert (summary.preset, summary.expected, summary.returns, summary.machine.packages) == (None, None, [], {})
    assert summary.command == "lockstep train --env CartPole-v1 --total-steps 4096"


def test_summary_of_an_incomplete_row(tmp_path: Path) -> None:
    row = {"iteration": 1, "env_steps": 1000, "seconds": 2.0, "return_mean_20": "NaN", "digest": "ab"}
    summary = read_summary(make_run(tmp_path, f"{json.dumps(row)}\n" + '{"iteration": 2, "env_st'))
    assert (summary.iteration, summary.env_steps, summary.steps_per_second, summary.digest) == (1, 1000, 500, "ab")
    assert summary.final is None


def test_the_final_return_of_a_run_with_few_episodes_is_the_mean_of_all(tmp_path: Path) -> None:
    rows = [
        {"iteration": 1, "env_steps": 1000, "seconds": 2.0, "episodes": 1, "return_mean": 4.0},
        {"iteration": 2, "env_steps": 2000, "seconds": 4.0, "episodes": 3, "return_mean": 8.0},
        {"iteration": 3, "env_steps": 3000, "seconds": 6.0, "episodes": 0, "return_mean": None},
    ]
    summary = read_summary(make_run(tmp_path, "".join(f"{json.dumps(row)}\n" for row in rows)))
    assert summary.final == ReturnMilestone(7.0, 3, 3000, 6.0, episodes=4)
    assert summary.best is None


def test_summary_of_a_running_run(tmp_path: Path) -> None:
    folder = RunFolder.open(make_run(tmp_path))
    folder.lock()
    assert read_summary(folder.path).status == "running"
    folder.unlock()
    assert read_summary(folder.path).status == "unfinished"


def test_an_environment_of_a_program_has_no_command(tmp_path: Path) -> None:
    assert read_summary(make_run(tmp_path, env={"id": "my_envs.make_env()"})).command is None


def test_the_command_omits_ranks_that_the_plan_does_not_allow(tmp_path: Path) -> None:
    path = make_run(tmp_path, plan={"kind": "one-trainer"})
    (path / "environment.json").write_text('{"ranks": 1, "preset": "no such", "packages": 7, "total_steps": "x"}')
    assert read_summary(path).command == "lockstep train --env CartPole-v1 --plan one-trainer --total-steps 4096"


def test_summary_of_stored_evaluations(tmp_path: Path) -> None:
    path = make_run(tmp_path)
    assert (read_summary(path).evaluated, read_summary(path).sampled) == (None, None)
    content = {"iteration": 2, "digest": "ab", "actions": "drawn", "returns": [1.0, 3.0], "lengths": [4, 4]}
    (path / "evaluation.json").write_text(json.dumps(content))
    (path / "evaluation-sampled.json").write_text(json.dumps({**content, "returns": [5.0, 7.0]}))
    sampled = read_summary(path).sampled
    assert sampled is not None
    assert sampled.result.returns == [5.0, 7.0]
    summary = read_summary(path).evaluated
    assert summary is not None
    assert (summary.result.return_mean, summary.result.interval) == (2.0, pytest.approx(1.96))
    for broken in ({**content, "returns": []}, {**content, "lengths": [4]}, {}, 7):
        (path / "evaluation.json").write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=r"evaluation\.json is broken; write a new one with `lockstep eval .*`"):
            read_summary(path)


def test_expected_results_of_presets() -> None:
    expected = {name: presets.expected(name) for name in presets.names()}
    assert {name for name, text in expected.items() if text is None} == set(FAMILIES)
    assert expected["pusher"] == "mean return of -35 over the last 20 episodes (a random policy has -150)."
    assert str(expected["mountaincar-continuous-no-velocity"]).endswith("-100: the goal is not reached.")


def test_the_command_of_a_family_names_the_environment(tmp_path: Path) -> None:
    sizes = {"plan": {"shards": 4}, "run": {"total_steps": 200_000}}
    tree = {"version": VERSION, "runtime": {"compile": "auto"}, **sizes}
    RunFolder.create(tmp_path / "run", tree, {"preset": "classic"})
    assert read_summary(tmp_path / "run").command == "lockstep train classic --env CartPole-v1"

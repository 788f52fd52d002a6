"""The facts of a run."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep import presets
from lockstep.report.summary import RunSummary, summarize
from lockstep.run.folder import RunFolder

SHORT = ("--total-steps", "3000", "--run.checkpoint-every", "5", "--runtime.compile", "off")


def facts(path: Path) -> RunSummary:
    return summarize(RunFolder.open(path))


def test_the_command_gives_the_run_again(run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    words = (*SHORT, "--ppo.clip", "0.1", "--env.options", "{sutton_barto_reward: false}", "--policy.hidden", "16", "8")
    assert run_cli("train", "cartpole", *words, "--env.per-rank", "4", "--ranks", "2", "--name", "first")[0] == 0
    first = facts(tmp_path / "runs/first")
    assert first.command is not None
    again = [*shlex.split(first.command)[1:], "--name", "again"]
    assert again[:2] == ["train", "cartpole"]
    assert run_cli(*again)[0] == 0
    second = facts(tmp_path / "runs/again")
    assert len(first.digest) == 64
    assert second.digest == first.digest
    assert second.command == first.command
    assert run_cli("train", *again[2:-2], "--env.count", "8", "--ppo.clip", "0.2", "--name", "none")[0] == 2  # twice


def test_what_happened(run_cli: Callable[..., tuple[int, str, str]], tmp_path: Path) -> None:
    words = ("--run.solved-return", "20", "--ranks", "1", "--name", "first")
    assert run_cli("train", "cartpole", *SHORT, *words)[0] == 0
    found = facts(tmp_path / "runs/first")
    rows = [json.loads(line) for line in (tmp_path / "runs/first/metrics.jsonl").read_text().splitlines()]
    assert (found.status, found.iteration, found.iterations, found.checkpoint) == ("finished", 11, 11, 11)
    assert (found.env_steps, found.digest) == (rows[-1]["env_steps"], rows[-1]["digest"])
    assert found.checkpoint_digest == found.digest
    assert found.final is not None
    assert found.best is not None
    assert found.solved is not None
    assert (found.final.value, found.final.iteration) == (rows[-1]["return_mean_20"], 11)
    assert sum(found.returns) / 20 == pytest.approx(found.final.value)
    means = [row["return_mean_20"] for row in rows if row["return_mean_20"] is not None]
    assert found.best.value == max(means)
    assert found.solved.value == next(mean for mean in means if mean >= 20)
    assert found.solved.seconds <= found.seconds
    assert found.expected is not None
    assert found.expected.startswith("mean return of 475 over the last 20 episodes")
    origins = {setting.name: setting.origin for setting in found.settings}
    assert origins["run.solved_return"] == origins["run.total_steps"] == "set"
    assert origins["ppo.clip"] == "preset"
    assert origins["env.count"] == origins["policy.activation"] == "default"
    assert origins["env.engine"] == origins["plan.shards"] == "decided"
    assert found.machine.packages["torch"]
    assert found.machine.ranks == 1
    assert (found.evaluated, found.extended, found.exact) == (None, False, True)
    assert run_cli("resume", "first", "--total-steps", "4000")[0] == 0
    assert facts(tmp_path / "runs/first").extended


def made(tmp_path: Path, metrics: str = "", **more: object) -> Path:
    """A run's folder with little in it."""
    tree: dict[str, object] = {"version": 1, "run": {"total_steps": 2048}, **more}
    RunFolder.create(tmp_path / "run", tree, {})
    (tmp_path / "run/metrics.jsonl").write_text(metrics)
    return tmp_path / "run"


def test_a_run_that_has_not_begun(tmp_path: Path) -> None:
    found = facts(made(tmp_path))
    assert (found.status, found.iteration, found.iterations, found.digest) == ("unfinished", 0, 2, "")
    assert (found.final, found.best, found.solved, found.checkpoint, found.steps_per_second) == (None,) * 5
    assert (found.preset, found.expected, found.returns, found.machine.packages) == (None, None, [], {})
    assert found.command == "lockstep train --env CartPole-v1 --total-steps 2048"


def test_a_row_that_is_half_written(tmp_path: Path) -> None:
    row = {"iteration": 1, "env_steps": 1000, "seconds": 2.0, "return_mean_20": "NaN", "digest": "ab"}
    found = facts(made(tmp_path, f"{json.dumps(row)}\n" + '{"iteration": 2, "env_st'))
    assert (found.iteration, found.env_steps, found.steps_per_second, found.digest) == (1, 1000, 500, "ab")
    assert found.final is None


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    folder = RunFolder.open(made(tmp_path))
    folder.lock()
    assert facts(folder.path).status == "running"
    folder.unlock()
    assert facts(folder.path).status == "unfinished"


def test_a_program_has_no_command(tmp_path: Path) -> None:
    assert facts(made(tmp_path, env={"id": "my_envs.make_env()"})).command is None


def test_a_plan_that_its_first_ranks_could_not_carry(tmp_path: Path) -> None:
    path = made(tmp_path, plan={"kind": "one-trainer"})
    (path / "environment.json").write_text('{"ranks": 1, "preset": "no such", "packages": 7, "total_steps": "x"}')
    assert facts(path).command == "lockstep train --env CartPole-v1 --plan one-trainer --total-steps 2048"


def test_what_evaluations_left(tmp_path: Path) -> None:
    path = made(tmp_path)
    assert (facts(path).evaluated, facts(path).sampled) == (None, None)
    content = {"iteration": 2, "digest": "ab", "actions": "drawn", "returns": [1.0, 3.0], "lengths": [4, 4]}
    (path / "evaluation.json").write_text(json.dumps(content))
    (path / "evaluation-sampled.json").write_text(json.dumps({**content, "returns": [5.0, 7.0]}))
    sampled = facts(path).sampled
    assert sampled is not None
    assert sampled.result.returns == [5.0, 7.0]
    found = facts(path).evaluated
    assert found is not None
    assert (found.result.return_mean, found.result.interval) == (2.0, pytest.approx(1.96))
    for broken in ({**content, "returns": []}, {**content, "lengths": [4]}, {}, 7):
        (path / "evaluation.json").write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=r"evaluation\.json is broken; `lockstep eval .*` writes it anew"):
            facts(path)


def test_what_presets_expect() -> None:
    said = {name: presets.expected(name) for name in presets.names()}
    assert {name for name, words in said.items() if words is None} == {"breakout", "pong"}
    assert said["pusher"] == "mean return of -35 over the last 20 episodes (a random policy has -150)."
    assert str(said["mountaincar-continuous-no-velocity"]).endswith("-100: the goal is not reached.")

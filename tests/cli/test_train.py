"""`lockstep train` and `lockstep resume`: files that they write, and input that they refuse in one line before they start."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.config import VERSION
from lockstep.run.folder import RunFolder
from lockstep.telemetry.attempts import read_starts

SHORT = ("--rollout.steps", 32, "--ppo.minibatches", 2, "--total-steps", 1024)


def assert_refused(finished, *parts: str) -> None:
    """Check for exit code 2, an empty stdout and one line on stderr that contains all of `parts`."""
    assert finished.rc == 2, finished
    assert finished.stdout == ""
    assert len(finished.stderr.splitlines()) == 1, finished.stderr
    for part in parts:
        assert part in finished.stderr


def test_train_writes_the_run_folder(run_cli, root: Path, tmp_path: Path) -> None:
    words = ("--name", "first", "--run.solved-return", 5)
    rc, out, err = run_cli("train", "cartpole", *SHORT, "--plan.shards", 1, "--out", "here", *words)
    assert (rc, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "starting first: CartPole-v1, 1 rank, cpu, in here/first"
    assert lines[1].startswith("iteration 1/4  25%  steps ")
    assert sum(line.endswith("  solved: goal 5") for line in lines) == 1
    assert lines[-5].startswith("iteration 4/4  100%  steps ")
    assert lines[-4].startswith("done: 4 iterations, ")
    assert lines[-1] == "run: here/first"
    run = tmp_path / "here" / "first"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4]
    wanted = {
        "env_steps",
        "fps",
        "t_iter",
        "t_rollout",
        "t_learn",
        "t_sync",
        "t_wait",
        "return_mean",
        "length_mean",
        "loss",
    }
    wanted |= {
        "policy_loss",
        "value_loss",
        "entropy",
        "approx_kl",
        "clip_frac",
        "explained_variance",
        "grad_norm",
        "learning_rate",
    }
    assert wanted < rows[-1].keys()
    assert 900 < rows[-1]["env_steps"] < 1024, "reset rows are no steps"
    documented = (root / "docs" / "metrics.md").read_text()
    assert not [name for name in rows[-1] if f"`{name}`" not in documented]
    config = json.loads((run / "config.json").read_text())
    assert (config["version"], config["env"]["engine"], config["plan"]["shards"]) == (VERSION, "gymnasium-vector", 1)
    environment = json.loads((run / "environment.json").read_text())
    assert {"torch", "numpy", "gymnasium"} < environment["packages"].keys()
    assert sorted(path.name for path in (run / "checkpoints" / "00000004").iterdir()) == [
        "agent.safetensors",
        "optimizer.safetensors",
        "shard-0000.safetensors",
        "state.json",
    ]
    assert list((run / "tb").glob("events.out.tfevents.*"))
    (start,) = read_starts(RunFolder(run))
    assert (start.iteration, start.last, start.ranks, start.plan) == (0, 4, 1, "coupled")
    assert (start.how, start.done) == ("done", 4)


FIRST_LINE = """
import sys
from lockstep.cli import train

train.start = lambda *arguments: print("torch" in sys.modules)
train.main(sys.argv[1:])
"""


def test_first_line_is_printed_before_pytorch_is_imported(tmp_path: Path, environ: dict[str, str]) -> None:
    words = (*map(str, SHORT), "--ranks", "2", "--plan.shards", "2", "--name", "first")
    command = [sys.executable, "-c", FIRST_LINE, "cartpole", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "starting first: CartPole-v1, 2 ranks, cpu, in runs/first\nFalse\n"


def test_a_preset_with_another_environment_loses_its_goal(run_cli, tmp_path: Path) -> None:
    rc, _, err = run_cli("train", "cartpole", "--env", "Acrobot-v1", *SHORT, "--name", "run")
    assert rc == 0
    assert err.startswith(
        "run.solved_return 475 is dropped: it was set for CartPole-v1, and env.id is Acrobot-v1; set "
    )
    assert len(err.splitlines()) == 1
    assert json.loads((tmp_path / "runs" / "run" / "config.json").read_text())["run"]["solved_return"] is None


@pytest.mark.slow
def test_tensorboard_reads_the_event_file(run_cli, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert run_cli("train", "cartpole", *SHORT, "--name", "first").rc == 0
    events = EventAccumulator(str(tmp_path / "runs" / "first" / "tb")).Reload()
    rows = [json.loads(line) for line in (tmp_path / "runs" / "first" / "metrics.jsonl").read_text().splitlines()]
    assert {"train/approx_kl", "rollout/return_mean", "time/fps"} <= set(events.Tags()["scalars"])
    points = events.Scalars("train/approx_kl")
    assert [point.step for point in points] == [row["env_steps"] for row in rows]


@pytest.mark.slow
def test_runs_without_a_name_are_numbered(run_cli, tmp_path: Path) -> None:
    for expected in ("runs/cartpole-seed1", "runs/cartpole-seed1-2"):
        finished = run_cli("train", "cartpole", *SHORT)
        assert finished.stdout.splitlines()[-1] == f"run: {expected}"
    assert_refused(run_cli("train", "cartpole", "--name", "cartpole-seed1"), "runs/cartpole-seed1 exists", "--name")


@pytest.mark.slow
def test_per_rank_is_resolved_once(run_cli, tmp_path: Path) -> None:
    words = ("train", "--env.per-rank", 4, *SHORT, "--ranks", 2, "--name", "weak", "--run.progress", "off")
    finished = run_cli(*words)
    assert finished.rc == 0, finished
    config = json.loads((tmp_path / "runs" / "weak" / "config.json").read_text())
    assert (config["env"]["count"], config["env"]["per_rank"], config["plan"]["shards"]) == (8, None, 2)


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--env.cuont", "8"], ["--env.cuont", "did you mean --env.count"]),
        (["--env.count", "abc"], ["env.count is 'abc'", "whole number"]),
        (["--plan.shards", "3"], ["env.count is 8", "plan.shards", "3"]),
        (["--plan.shards", "4", "--ranks", "8"], ["plan.shards is 4", "8 trainers"]),
        (["--plan", "2:1", "--ranks", "2"], ["plan.kind is '2:1'", "exactly 3 ranks", "--ranks 3"]),
        (["--plan", "1:5", "--plan.shards", "4"], ["plan.shards is 4", "5 trainers"]),
        (["--plan", "one-player", "--ranks", "1"], ["plan.kind is 'one-player'", "at least 2 ranks"]),
        (["--plan", "decoupled"], ["plan.kind is 'decoupled'", "one-trainer"]),
        (["--plan", "one-trainer", "--plan.gradients", "ddp"], ["plan.gradients is 'ddp'", "one trainer"]),
        (["--runtime.player-threads", "2"], ["runtime.player_threads is 2", "ranks that play and train"]),
        (["--plan.correction", "vtrace"], ["plan.correction is 'vtrace'", "plan.lag is 0"]),
        (["--plan.shards", "4", "--ppo.minibatches", "7"], ["ppo.minibatches is 7", "2 environments", "64"]),
        (["--env", "CartPool-v1"], ["CartPool-v1", "CartPole-v1"]),
        (["--env", "LunarLander-v2"], ["LunarLander-v3"]),
        (["--env", "os:path"], ["os:path"]),
        (["--total-steps", "100"], ["run.total_steps is 100", "256"]),
        (["--ranks", "0"], ["--ranks", "0", "at least 1"]),
        (["--policy.squash"], ["policy.squash", "discrete"]),
        (["--policy.shared", "--ppo.value-epochs", "3"], ["policy.shared", "separate"]),
        (["--ppo.clip", "linear(0.2)"], ["ppo.clip", "linear(a, b)"]),
        (["--ppo.gamma", "1.5"], ["ppo.gamma is 1.5", "between 0 and 1"]),
        (["--plan", "coupeld"], ["plan.kind", "coupled"]),
        (["--name", "../evil"], ["run.name", "../evil"]),
        (["--env.engine", "envpoool"], ["env.engine", "envpool"]),
        (["--out", "/proc/nothing"], ["/proc/nothing"]),
        (["extra", "words"], []),
        (["--out", "x" * 300], ["run.folder", "can't be made"]),
        (["--policy.hidden", "100000"], ["policy.hidden", "16,384"]),
        (["--runtime.timeout", "1e300"], ["runtime.timeout"]),
        (
            ["--env.count", "100000", "--rollout.steps", "100000", "--total-steps", "20_000_000_000"],
            ["rollout.steps is 100000", "10,000,000,000 steps"],
        ),
        (
            [
                "--ppo.learning-rate-kl",
                "0.01",
                "--ppo.learning-rate-kl-max",
                "100",
                "--ppo.epochs",
                "1",
                "--ppo.minibatches",
                "1",
            ],
            ["learning_rate_kl", "at least 2"],
        ),
        (["--env.options", "{num_threads: 3}", "--env.engine", "envpool"], ["env.options", "num_threads"]),
        (["--curiosity.kind", "rdn"], ["curiosity.kind is 'rdn'", "rnd"]),
        (
            ["--curiosity.kind", "rnd", "--curiosity.combine", "two-heads"],
            ["curiosity.gamma is none", "need a discount factor"],
        ),
        (["--curiosity.kind", "rnd", "--curiosity.channels", "1"], ["curiosity.channels is 1", "no images"]),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    run_cli, tmp_path: Path, words: list[str], parts: list[str]
) -> None:
    short = ("--rollout.steps", "32") if "--rollout.steps" not in words else ()
    assert_refused(run_cli("train", "cartpole", *short, *words), *parts)
    assert not (tmp_path / "runs").exists(), "nothing may be left behind"


def test_invalid_config_files_are_reported_in_one_line(run_cli, tmp_path: Path) -> None:
    (tmp_path / "newer.yaml").write_text(f"version: {VERSION + 1}\n")
    assert_refused(run_cli("train", "--config", "newer.yaml"), f"version {VERSION + 1} is newer", "upgrade")
    (tmp_path / "unknown.yaml").write_text("ppo:\n  clipp: 0.2\n")
    assert_refused(run_cli("train", "--config", "unknown.yaml"), "ppo.clipp", "did you mean ppo.clip")
    assert_refused(run_cli("train", "cartpol"), "cartpol", "did you mean cartpole")


def test_an_unsupported_space_is_named(run_cli, tmp_path: Path) -> None:
    (tmp_path / "told.py").write_text(
        "import gymnasium as gym\n"
        "class Told(gym.Env):\n"
        "    observation_space = gym.spaces.Dict(told=gym.spaces.Text(9))\n"
        "    action_space = gym.spaces.Discrete(2)\n"
        "gym.register('Told-v0', Told)\n"
    )
    words = ("its observations have a Text in ['told'], which is not supported",)
    assert_refused(run_cli("train", "--env", "Told-v0", "--env.module", "told"), "Told-v0", *words)


@pytest.mark.slow
def test_broken_checkpoint_is_reported_in_one_line(run_cli, tmp_path: Path) -> None:
    words = ("train", "cartpole", *SHORT, "--name", "first", "--run.checkpoint-every", 2, "--run.progress", "off")
    assert run_cli(*words).rc == 0
    run = tmp_path / "runs" / "first"
    longer = ("--total-steps", 1280)
    for name in ("agent.safetensors", "optimizer.safetensors", "shard-0000.safetensors", "state.json"):
        shutil.copytree(run, tmp_path / "runs" / name)
        broken = tmp_path / "runs" / name / "checkpoints" / "00000004" / name
        broken.write_bytes(broken.read_bytes()[:-20])
        assert_refused(run_cli("resume", name, *longer, "--iteration", 4), name, "--iteration 2")
        finished = run_cli("resume", name, *longer, "--iteration", 2)
        assert finished.rc == 0, finished
        assert finished.stdout.splitlines()[-1] == f"run: runs/{name}"


@pytest.mark.slow
def test_checkpoint_with_other_shapes_is_reported_in_one_line(run_cli, tmp_path: Path) -> None:
    assert run_cli("train", "cartpole", *SHORT, "--name", "first", "--run.progress", "off").rc == 0
    config = tmp_path / "runs" / "first" / "config.json"
    tree = json.loads(config.read_text())
    tree["policy"]["hidden"] = [32, 32]
    config.write_text(json.dumps(tree))
    assert_refused(run_cli("resume", "first", "--total-steps", 2048), "does not fit", "policy.")
    tree["version"] = VERSION + 1
    config.write_text(json.dumps(tree))
    assert_refused(run_cli("resume", "first"), f"version {VERSION + 1}", "upgrade")


def test_resume_refuses_a_folder_that_is_not_a_run(run_cli, tmp_path: Path) -> None:
    assert_refused(run_cli("resume", "nothing"), "nothing")
    (tmp_path / "folder").mkdir()
    assert_refused(run_cli("resume", "folder"), "folder is not a run")


@pytest.mark.slow
def test_resume_with_a_larger_budget_continues_training(run_cli, tmp_path: Path) -> None:
    assert run_cli("train", "cartpole", *SHORT, "--plan.shards", 1, "--name", "first").rc == 0
    assert "is complete" in run_cli("resume", "first").stdout
    assert_refused(run_cli("resume", "first", "--total-steps", 512), "total_steps is 512", "1024")
    config = tmp_path / "runs" / "first" / "config.json"
    before = config.read_text()
    assert_refused(run_cli("resume", "first", "--total-steps", 2048, "--iteration", 3), "iteration is 3", "4")
    assert_refused(run_cli("resume", "first", "--total-steps", 2048, "--ranks", 2), "plan.shards is 1", "2 trainers")
    assert config.read_text() == before, "a refused command changes nothing"
    finished = run_cli("resume", "first", "--total-steps", 2048, "--ranks", 1)
    assert finished.rc == 0, finished
    first, second, *_ = finished.stdout.splitlines()
    assert first == "resuming first from iteration 4: CartPole-v1, 1 rank, cpu, in runs/first"
    assert second.startswith("iteration 5/8  62%")


def test_run_in_use_is_refused_and_unchanged(run_cli, tmp_path: Path) -> None:
    assert run_cli("train", "cartpole", *SHORT, "--name", "first", "--run.progress", "off").rc == 0
    run = tmp_path / "runs" / "first"
    before = (run / "config.json").read_text()
    descriptor = os.open(run, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # as the process that trains it does
    try:
        refused = run_cli("resume", "first", "--total-steps", 2048)
        assert refused.rc == 6
        assert refused.stderr == "lockstep: runs/first is in use: another process is training it\n"
    finally:
        os.close(descriptor)
    assert (run / "config.json").read_text() == before
    assert run_cli("resume", "first", "--total-steps", 2048).rc == 0


def test_launcher_refuses_ranks_and_fails_on_every_rank(run_cli) -> None:
    env = {"RANK": "0", "WORLD_SIZE": "1"}
    assert_refused(run_cli("train", "cartpole", "--ranks", 2, env=env), "--ranks is 2", "launcher")


@pytest.mark.slow
def test_non_finite_values_end_training_with_code_3(run_cli) -> None:
    words = ("--ranks", 2, "--ppo.learning-rate", 1e30, "--run.progress", "off", "--name", "run")
    finished = run_cli("train", "cartpole", *SHORT, *words)
    assert finished.rc == 3
    assert "in the loss (operation " in finished.stderr
    replayed = run_cli("replay", "runs/run/non-finite-00000001.safetensors")
    assert replayed.rc == 0, replayed
    assert replayed.stdout.splitlines()[1].removeprefix("reproduced: ") in finished.stderr


def test_help_shows_every_field_within_80_columns(run_cli) -> None:
    rc, out, _ = run_cli("train", "--help", env={"COLUMNS": "80"})
    assert rc == 0
    assert "--ppo.gae-lambda" in out
    assert "--ranks N" in out
    assert max(map(len, out.splitlines())) <= 80


def test_wide_actions_are_squashed_unless_the_user_says_otherwise(run_cli, tmp_path: Path) -> None:
    (tmp_path / "wide.py").write_text(
        "import gymnasium as gym\n\n\n"
        "def make():\n    return gym.wrappers.RescaleAction(gym.make('Pendulum-v1').unwrapped, -200, 200)\n\n\n"
        "gym.register('Wide-v0', make, max_episode_steps=200)\n"
    )
    squashed = {}
    for name, flags in (("default", ()), ("off", ("--policy.squash", "false"))):
        finished = run_cli("train", "--env.module", "wide", *SHORT, "--name", name, "--run.progress", "off", *flags)
        assert finished.rc == 0, finished
        squashed[name] = json.loads((tmp_path / "runs" / name / "config.json").read_text())["policy"]["squash"]
    assert squashed == {"default": True, "off": False}

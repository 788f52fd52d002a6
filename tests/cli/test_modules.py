"""Environments in a user's module, which is imported only if the command line names it."""

import json
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.cli.main import main
from lockstep.envs.modules import import_registered

MODULE = """
import gymnasium as gym
import numpy as np
from pathlib import Path

Path("imported").write_text("yes")


class Guess(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 5
        return np.array([1, 0], np.float32), {}

    def step(self, action):
        self.left -= 1
        return np.array([self.left / 5, 0], np.float32), float(action), self.left == 0, False, {}


gym.register("Guess-v0", Guess)
"""
FLAGS = (
    *("--env.id", "Guess-v0", "--env.count", 4, "--rollout.steps", 16, "--total-steps", 192, "--ppo.minibatches", 2),
    *("--plan.shards", 2, "--run.checkpoint-every", 1, "--run.progress", "off", "--name", "run"),
)


@pytest.fixture
def module(tmp_path: Path) -> Path:
    (tmp_path / "my_envs.py").write_text(MODULE)
    return tmp_path / "my_envs.py"


@pytest.mark.slow
def test_module_is_imported_by_every_rank_and_by_later_commands(run_cli, tmp_path: Path, module: Path) -> None:
    again = ("--env.module", "my_envs")
    digests = []
    for ranks in (1, 2):
        evaluated = ("--run.evaluate-every", 1, "--run.evaluate-episodes", 1)
        finished = run_cli("train", *FLAGS[:-1], f"run-{ranks}", *again, "--ranks", ranks, *evaluated)
        assert finished.rc == 0, finished
        lines = (tmp_path / f"runs/run-{ranks}/evaluations.jsonl").read_text().splitlines()
        assert [json.loads(line)["length_mean"] for line in lines] == [5, 5, 5]
        digests.append(run_cli("digest", f"runs/run-{ranks}").stdout.split()[-1])
    assert digests[0] == digests[1]
    assert json.loads((tmp_path / "runs/run-2/config.json").read_text())["env"]["module"] == "my_envs"
    (tmp_path / "imported").unlink()
    for words in (
        ("resume", "runs/run-2", "--total-steps", 256),
        ("eval", "runs/run-2"),
        ("play", "runs/run-2", "--video"),
    ):
        finished = run_cli(*words)
        assert finished.rc == 2, finished
        assert finished.stderr == (
            "lockstep: env.module is 'my_envs' in this run: a run folder can't import modules; "
            "pass --env.module my_envs again if you trust it\n"
        )
        assert not (tmp_path / "imported").exists()
    finished = run_cli("resume", "runs/run-2", "--total-steps", 256, "--ranks", 2, *again)
    assert finished.rc == 0, finished
    finished = run_cli("eval", "runs/run-2", "--episodes", 2, *again)
    assert finished.rc == 0, finished
    assert "2 episodes of Guess-v0, iteration 4" in finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_an_environment_may_change_the_working_directory(run_cli, tmp_path: Path, module: Path, ranks: int) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    change = f"import os; os.chdir({str(elsewhere)!r})"
    module.write_text(MODULE.replace("        self.left = 5\n", f"        {change}\n        self.left = 5\n"))
    again = ("--env.module", "my_envs")
    evaluated = ("--run.evaluate-every", 1, "--run.evaluate-episodes", 1)
    finished = run_cli("train", *FLAGS, *again, "--ranks", ranks, *evaluated)
    assert finished.rc == 0, finished
    assert finished.stdout.splitlines()[-1] == "run: runs/run"
    assert len((tmp_path / "runs" / "run" / "evaluations.jsonl").read_text().splitlines()) == 3
    assert run_cli("eval", "run", *again).stdout.splitlines()[-1] == "written runs/run/evaluation.json"
    assert (tmp_path / "runs" / "run" / "evaluation.json").is_file()
    assert {path.name for path in elsewhere.iterdir()} <= {"imported"}


@pytest.mark.slow
def test_an_environment_may_change_its_actions_in_place(run_cli, tmp_path: Path, module: Path) -> None:
    changing = MODULE.replace("gym.spaces.Discrete(2)", "gym.spaces.Box(-1, 1, (2,))")
    module.write_text(
        changing.replace("self.left = 5", "self.left, self.sum = 50, 0")
        .replace(
            "        self.left -= 1\n", "        self.left -= 1\n        self.sum += action[0]\n        action *= 7\n"
        )
        .replace("float(action), self.left", "float(self.sum), self.left")
        .replace("self.left / 5, 0]", "self.left / 50, self.sum / 50]")
    )
    words = ("--env.engine", "gymnasium", "--env.module", "my_envs")
    finished = run_cli("train", *FLAGS, *words)
    assert finished.rc == 0, finished
    digest = run_cli("digest", "runs/run").stdout.split()[-1]
    finished = run_cli("resume", "runs/run", "--iteration", 2, "--env.module", "my_envs")
    assert finished.rc == 0, finished
    assert run_cli("digest", "runs/run").stdout.split()[-1] == digest


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("--policy.normalize-observations", "--ppo.normalize-rewards"),
        ("--policy.core", "lstm", "--policy.core-size", 4),
        ("--plan.lag", 1, "--plan.correction", "vtrace"),
    ],
    ids=["normalized", "lstm", "vtrace"],
)
def test_the_last_observation_of_a_terminated_episode_may_be_nan(run_cli, module: Path, options: tuple) -> None:
    """A failed simulation may terminate an episode with NaN. A NaN in any other observation stops the run."""
    module.write_text(MODULE.replace("self.left / 5, 0]", "self.left / 5 if self.left else np.nan, 0]"))
    finished = run_cli("train", *FLAGS, "--env.module", "my_envs", *options)
    assert finished.rc == 0, finished
    module.write_text(MODULE.replace("self.left / 5, 0]", "self.left / 5 if self.left != 2 else np.nan, 0]"))
    finished = run_cli("train", *FLAGS[:-1], "second", "--env.module", "my_envs", *options)
    assert finished.rc == 3, finished
    assert "the observation of environment 0 is nan at step 3 of iteration 1: check the environment" in finished.stderr


def test_command_finds_modules_in_the_current_folder(run_cli, module: Path) -> None:
    """Run the installed script, for which Python does not add the current folder to its search path."""
    finished = run_cli("train", *FLAGS, "--env.module", "my_envs", prefix=(sys.executable, "-P", "-m"))
    assert finished.rc == 0, finished


def test_config_file_cannot_import_a_module(run_cli, tmp_path: Path, module: Path) -> None:
    (tmp_path / "mine.yaml").write_text("env:\n  id: Guess-v0\n  module: my_envs\n")
    finished = run_cli("train", "--config", "mine.yaml", *FLAGS)
    assert finished.rc == 2
    assert finished.stderr == (
        "lockstep: env.module is 'my_envs': a config file can't import modules; pass --env.module on the command line if you trust it\n"
    )
    assert not (tmp_path / "imported").exists()
    finished = run_cli("train", "--config", "mine.yaml", *FLAGS, "--env.module", "my_envs")
    assert finished.rc == 0, finished


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("my_env", "", "env.module is 'my_env': there is no module 'my_env', neither in "),
        ("my_envs.py", "", "env.module is 'my_envs.py': there is no module 'my_envs.py', neither in "),
        ("./my_envs", "", "env.module is './my_envs': it must be the name of a module, such as my_envs for my_envs.py"),
        ("my_envs", "import nothing_of_this_name", "env.module is 'my_envs': importing it failed: ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("my_envs", "x = 1\n1 / 0", "env.module is 'my_envs': importing it failed: ZeroDivisionError: division by zero ("),
        ("my_envs", "x = 1", "env.id is 'Guess-v0': there is no such environment"),
    ],
)  # fmt: skip
def test_unusable_module_is_reported_in_one_line(run_cli, module: Path, name: str, text: str, words: str) -> None:
    module.write_text(text)
    finished = run_cli("train", *FLAGS, "--env.module", name)
    assert finished.rc == 2
    assert finished.stderr.startswith(f"lockstep: {words}")
    assert finished.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_only_environment_of_a_module_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alone_envs.py").write_text(MODULE.replace("Guess-v0", "GuessAlone-v0"))
    words = [*map(str, FLAGS[2:]), "--env.module", "alone_envs", "--ranks", "1", "--runtime.compile", "off"]
    assert main(["train", *words]) == 0
    assert json.loads((tmp_path / "runs/run/config.json").read_text())["env"]["id"] == "GuessAlone-v0"


def test_environment_of_a_module_that_was_imported_before_is_trained(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "early_envs.py").write_text(MODULE.replace("Guess-v0", "GuessEarly-v0"))
    assert [import_registered("early_envs", "Default-v0") for _ in range(2)] == ["GuessEarly-v0"] * 2


@pytest.mark.slow
def test_sweep_bench_and_api_use_the_only_environment_of_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "swept_envs.py").write_text(MODULE.replace("Guess-v0", "GuessSwept-v0"))
    words = [*map(str, FLAGS[2:-2]), "--env.module", "swept_envs", "--ranks", "1", "--runtime.compile", "off"]
    assert main(["sweep", *words, "--over", "run.seed=1", "--out", "swept"]) == 0
    configs = [json.loads(path.read_text()) for path in (tmp_path / "swept/runs").glob("*/config.json")]
    assert [config["env"]["id"] for config in configs] == ["GuessSwept-v0"]
    progress = words.index("--run.progress")
    words = words[:progress] + words[progress + 2 :]
    assert main(["bench", "throughput", *words, "--iterations", "5", "--repeats", "1", "--json", "speed.json"]) == 0
    assert json.loads((tmp_path / "speed.json").read_text())["config"]["env"]["id"] == "GuessSwept-v0"
    env = {"module": "swept_envs", "count": 4}
    settings = {"rollout": {"steps": 16}, "ppo": {"minibatches": 2}, "runtime": {"compile": "off"}}
    run = lockstep.train(env=env, total_steps=128, name="program", **settings)
    assert run.config.env.id == "GuessSwept-v0"


@pytest.mark.parametrize(
    ("name", "ids", "listed"),
    [("no_envs", (), "no environment"), ("two_envs", ("TwoA-v0", "TwoB-v0"), "TwoA-v0, TwoB-v0")],
)
def test_a_module_without_or_with_several_environments_needs_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, name: str, ids: tuple[str, ...], listed: str
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [f"gymnasium.register({env_id!r}, 'x:Y')" for env_id in ids]
    (tmp_path / f"{name}.py").write_text("\n".join(["import gymnasium", *lines]))
    assert main(["train", "--env.module", name]) == 2
    assert f"registered {listed}; choose one" in capsys.readouterr().err


def test_module_that_registers_only_a_core_keeps_the_default_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "core_alone.py").write_text("import lockstep\nlockstep.register_core('alone', lambda *sizes: None)")
    assert import_registered("core_alone", "Default-v0") == "Default-v0"


@pytest.mark.exhaustive
def test_bench_measures_an_environment_of_a_module(run_cli, module: Path) -> None:
    words = ("--iterations", 5, "--repeats", 1, "--env.module", "my_envs")
    finished = run_cli("bench", "throughput", *FLAGS[:-4], *words)
    assert finished.rc == 0, finished

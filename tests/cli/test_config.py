import json
from pathlib import Path

import pytest

from lockstep import presets
from lockstep.cli.main import main
from lockstep.config.compose import load


def test_gin_file_is_printed_as_yaml(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gin, yaml = tmp_path / "dense.gin", tmp_path / "dense.yaml"
    gin.write_text("rate = 1E-3\nCritic.lr = %rate\ntrain.nhid = 32\nppo.learning_rate = 'linear(1e-3, 0)'\n")
    assert main(["config", "--config", str(gin), "--seed", "3"]) == 0
    yaml.write_text(capsys.readouterr().out)
    assert yaml.read_text() == (
        "env:\n  id: pendulum-dense\npolicy:\n  hidden: [32, 32]\n"
        "ppo:\n  learning_rate: linear(1e-3, 0)\n  value_learning_rate: 0.001\n  minibatches: 1\nrun:\n  seed: 3\n"
    )
    assert load(None, yaml, {}) == load(None, gin, {"run": {"seed": "3"}})


@pytest.mark.parametrize("preset", presets.names())
def test_preset_is_printed_unchanged(preset: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", preset]) == 0
    (tmp_path / "same.yaml").write_text(capsys.readouterr().out)
    assert load(None, tmp_path / "same.yaml", {}) == load(presets.read(preset), None, {})


def test_no_arguments_print_an_empty_config(capsys: pytest.CaptureFixture[str]) -> None:
    assert (main(["config"]), capsys.readouterr().out) == (0, "{}\n")


def test_a_goal_of_another_environment_is_dropped_with_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "lunarlander", "--env", "BipedalWalker-v3"]) == 0
    out, err = capsys.readouterr()
    assert "id: BipedalWalker-v3" in out
    assert "solved_return" not in out
    assert err == (
        "run.solved_return 200 is dropped: it was set for LunarLander-v3, and env.id is BipedalWalker-v3; "
        "set run.solved_return again if BipedalWalker-v3 needs one\n"
    )


def test_invalid_input_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.gin"
    path.write_text("ppo.clip = 0.2\nimport os\n")
    assert main(["config", "--config", str(path)]) == 2
    message = f"lockstep: {path}: line 2: 'import os' would run code, but a config file is read as data; remove it\n"
    assert capsys.readouterr() == ("", message)
    assert main(["config", "cartpole", "--ppo.clpi", "1"]) == 2
    assert capsys.readouterr().err == "lockstep: --ppo.clpi: unknown flag; did you mean --ppo.clip?\n"


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        ("a.yaml", "env:\n  ? [1, 2]\n  : 3\n", "{path}: line 2: a key can't be a list or a mapping"),
        (
            "a.gin",
            "\n".join(
                ["m0 = [64, 64]", *(f"m{n} = [%m{n - 1}, %m{n - 1}]" for n in range(1, 20)), "policy.hidden = %m19"]
            ),
            "{path}: line 14: 'm13 = [%m12, %m12]': the macros of this file expand to more than 100,000 characters; use fewer",
        ),
        ("a.yaml", "ppo.clip: 0.1\nppo: {clip: 0.2}\n", "{path}: ppo.clip is given twice"),
    ],
)
def test_malicious_file_is_reported_in_one_line(
    name: str, text: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(text)
    assert main(["config", "--config", str(tmp_path / name)]) == 2
    assert capsys.readouterr() == ("", f"lockstep: {line.format(path=tmp_path / name)}\n")


def test_dotted_key_in_a_file_sets_a_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.yaml").write_text("env.id: Acrobot-v1\n")
    assert main(["config", "--config", str(tmp_path / "a.yaml")]) == 0
    assert capsys.readouterr().out == "env:\n  id: Acrobot-v1\n"


@pytest.mark.parametrize("value", ["-1", "linear(1, -1)", "nan", "piecewise(0: 1, 0: 2)"])
def test_message_about_an_invalid_learning_rate_lists_the_accepted_forms(
    value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", f"--ppo.learning-rate={value}"]) == 2
    shown = "-1.0" if value == "-1" else repr(value)
    assert capsys.readouterr().err == (
        f"lockstep: ppo.learning_rate is {shown}: it must be a number of at least 0, or a schedule of such numbers: "
        "linear(a, b), cosine(a, b) or piecewise(0: a, 0.5: b, 1: c) with ascending shares from 0 to 1\n"
    )


@pytest.mark.slow
def test_train_accepts_a_gin_file(tmp_path: Path, run_cli) -> None:
    """A file may mix the names of the pendulum program with config fields."""
    (tmp_path / "dense.gin").write_text(
        "train.num_iter = 2\ntrain.num_trajs = 4\ntrain.num_actor_epochs = 2\ntrain.num_critic_epochs = 3\n"
        "train.nhid = 8\ntrain.bs = 20\ntrain.surrogate_objective = 'clip'\nCritic.lr = 1E-3\nrun.name = 'dense'\n"
    )
    finished = run_cli("train", "pendulum-dense", "--config", "dense.gin")
    assert finished.rc == 0, finished
    config = (tmp_path / "runs/dense/config.json").read_text()
    assert '"pendulum-dense"' in config
    metrics = (tmp_path / "runs/dense/metrics.jsonl").read_text().splitlines()
    assert len(metrics) == 2
    assert '"episodes": 4' in metrics[0]


def test_gin_file_may_set_the_number_of_iterations_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.gin"
    path.write_text("train.num_iter = 50\n")
    assert main(["config", "pendulum-dense", "--config", str(path)]) == 0
    assert "  total_steps: 102400\n" in capsys.readouterr().out


ZOO = """
LunarLander-v3:
  {n_envs: 4, n_steps: 64, n_timesteps: !!float 1e3, batch_size: 64, gae_lambda: 0.98, gamma: 0.999, n_epochs: 4, ent_coef: 0.01}
HalfCheetah-v4:
  normalize: true
  n_steps: 256
  n_timesteps: 1000
  learning_rate: lin_2e-5
  policy_kwargs: "dict(log_std_init=-2, ortho_init=False, activation_fn=nn.GELU, net_arch=dict(pi=[32, 32], vf=[64]))"
atari:
  env_wrapper: [stable_baselines3.common.atari_wrappers.AtariWrapper]
  frame_stack: 4
  policy: CnnPolicy
  n_envs: 2
  n_steps: 16
  batch_size: 16
  n_epochs: 1
  n_timesteps: 64
"""


@pytest.mark.slow
@pytest.mark.extra("Box2D", "mujoco", "ale_py", "envpool")
@pytest.mark.parametrize("env_id", ["LunarLander-v3", "HalfCheetah-v5", "PongNoFrameskip-v4"])
def test_entry_of_a_zoo_is_converted_and_trained(run_cli, tmp_path: Path, env_id: str) -> None:
    (tmp_path / "ppo.yml").write_text(ZOO)
    printed = run_cli("config", "--from-zoo", "ppo.yml", "--env", env_id)
    assert printed.rc == 0, printed
    (tmp_path / "own.yaml").write_text(printed.stdout)
    trained = run_cli("train", "--config", "own.yaml", "--name", "run", "--ranks", 1, "--runtime.compile", "off")
    assert trained.rc == 0, trained
    saved = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())
    assert saved["env"]["id"] == env_id.replace("PongNoFrameskip-v4", "ALE/Pong-v5")

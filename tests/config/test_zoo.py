"""Conversion of hyperparameter files of rl-baselines3-zoo."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.config.compose import load
from lockstep.config.zoo import ConvertedEntry, convert_zoo

FILE = """
default:
  n_timesteps: !!float 1e6
  policy: 'MlpPolicy'

atari:
  env_wrapper:
    - stable_baselines3.common.atari_wrappers.AtariWrapper
  frame_stack: 4
  policy: 'CnnPolicy'
  n_envs: 8
  n_steps: 128
  n_epochs: 4
  batch_size: 256
  n_timesteps: !!float 1e7
  learning_rate: lin_2.5e-4
  clip_range: lin_0.1
  vf_coef: 0.25

Plain-v1: &plain
  n_timesteps: 20000

Walker-v3:
  <<: *plain
  gamma: 0.5

Walker-v4:
  <<: *plain
  normalize: "{'norm_obs': True, 'norm_reward': False}"
  n_envs: 2
  n_steps: 512
  batch_size: 32
  gamma: 0.98
  learning_rate: 2.0633e-05
  clip_range_vf: 0.3
  target_kl: 0.02
  normalize_advantage: False
  env_kwargs: "dict(size=3)"
  policy_kwargs: "dict(
                    log_std_init=-2, ortho_init=False, activation_fn=nn.ReLU,
                    net_arch=dict(pi=[256, 128], vf=[32])
                  )"

Sde-v0:
  use_sde: True
  sde_sample_freq: 4
  callback: some.Callback
  policy_kwargs: {log_std_init: -3.3, optimizer_class: x}

Wrapped-v0:
  env_wrapper:
    - rl_zoo3.wrappers.FrameSkip: {skip: 2}
    - rl_zoo3.wrappers.YAMLCompatResizeObservation:
        shape: [64, 64]
    - gymnasium.wrappers.transform_observation.GrayscaleObservation:
        keep_dim: true
    - minigrid.wrappers.FlatObsWrapper
  frame_stack: 2
  policy: CnnPolicy

Recurrent-v0:
  policy: MlpLstmPolicy
  n_envs: 8
  policy_kwargs: "dict(enable_critic_lstm=False, lstm_hidden_size=64, net_arch=[32])"

Deep-v0: {policy: CnnPolicy, policy_kwargs: "dict(net_arch=dict(pi=[32, 16], vf=[8]))"}
Odd-v0: {n_envs: 1, n_steps: 100, batch_size: 64}
Old-v0: {policy_kwargs: "dict(net_arch=[dict(pi=[8], vf=[8])])"}
"""


@pytest.fixture(name="file")
def fixture_file(tmp_path: Path) -> Path:
    path = tmp_path / "ppo.yml"
    path.write_text(FILE)
    return path


def converted(file: Path, env_id: str) -> ConvertedEntry:
    """Convert an entry; its fields make a valid config."""
    found = convert_zoo(file, env_id)
    load(found.tree, None, {})
    return found


def test_missing_arguments_have_the_defaults_of_stable_baselines3(file: Path) -> None:
    name, tree, notes = converted(file, "Plain-v1")
    assert (name, notes) == ("Plain-v1", [])
    assert tree == {
        "env": {"id": "Plain-v1", "count": 1},
        "rollout": {"steps": 2048},
        "policy": {
            **{"hidden": [64, 64], "activation": "tanh", "orthogonal": True, "log_std": 0.0, "squash": False},
            "normalize_observations": False,
        },
        "ppo": {
            **{"learning_rate": 3e-4, "learning_rate_kl": None, "clip": 0.2, "value_clip": None, "gamma": 0.99},
            **{"gae_lambda": 0.95, "epochs": 10, "minibatches": 32, "entropy": 0.0, "value_coefficient": 1.0},
            **{"max_grad_norm": 0.5, "normalize_advantages": True, "normalize_rewards": False},
            "recompute_advantages": False,
        },
        "run": {"total_steps": 20_000},
    }


def test_all_arguments_of_a_tuned_entry(file: Path) -> None:
    _, tree, notes = converted(file, "Walker-v4")
    assert notes == []
    assert tree["env"] == {"id": "Walker-v4", "count": 2, "options": {"size": 3}}
    policy, ppo = tree["policy"], tree["ppo"]
    assert (policy["hidden"], policy["value_hidden"], policy["activation"]) == ([256, 128], [32], "relu")
    assert (policy["orthogonal"], policy["log_std"], policy["normalize_observations"]) == (False, -2, True)
    assert (ppo["minibatches"], ppo["learning_rate"], ppo["value_clip"]) == (32, 2.0633e-05, 0.3)
    assert (ppo["kl_stop"], ppo["normalize_advantages"], ppo["normalize_rewards"]) == (0.03, False, False)


def test_another_version_of_the_environment_takes_the_newest_entry(file: Path) -> None:
    name, tree, notes = converted(file, "Walker-v5")
    assert (name, tree["env"]["id"], tree["ppo"]["gamma"]) == ("Walker-v4", "Walker-v5", 0.98)
    assert notes == [f"{file} has no entry Walker-v5: the settings are those of Walker-v4"]


@pytest.mark.parametrize("env_id", ["PongNoFrameskip-v4", "ALE/Pong-v5"])
def test_atari_game(file: Path, env_id: str) -> None:
    name, tree, notes = converted(file, env_id)
    assert name == "atari"
    assert tree["env"] == {
        **{"id": "ALE/Pong-v5", "count": 8},
        "options": {"repeat_action_probability": 0.0, "episodic_life": True},
    }
    assert (tree["ppo"]["learning_rate"], tree["ppo"]["clip"]) == ("linear(2.5e-4, 0)", "linear(0.1, 0)")
    assert (tree["ppo"]["clip_rewards"], tree["ppo"]["value_coefficient"], tree["ppo"]["minibatches"]) == (True, 0.5, 4)
    assert (tree["policy"]["encoder"], tree["policy"]["shared"]) == ("nature", True)
    assert notes == [
        "AtariWrapper: episodes of one life need the engine envpool (extra `envpool`)",
        "AtariWrapper: it presses FIRE after a reset; the games of lockstep do not",
    ]


def test_wrappers_become_calls(file: Path) -> None:
    _, tree, notes = converted(file, "Wrapped-v0")
    assert tree["env"]["wrappers"] == [
        "RepeatAction(num_repeats=2)",
        "ResizeObservation(shape=(64, 64))",
        "GrayscaleObservation(keep_dim=True)",
        "FlatObsWrapper()",
        "FrameStackObservation(stack_size=2, padding_type='zero')",
    ]
    assert notes == ["train with --env.module minigrid.wrappers: a file can't name a module to import"]


def test_arguments_without_an_equivalent_are_named(file: Path) -> None:
    _, tree, notes = converted(file, "Sde-v0")
    assert tree["env"]["id"] == "Sde-v0"
    assert [note.split(":")[0] for note in notes] == ["policy_kwargs", "callback is not converted"]


@pytest.mark.parametrize(
    ("line", "steps"), [("sde_sample_freq: 8", 8), ("sde_sample_freq: -1", 2048), ("n_steps: 16", 16)]
)
def test_state_dependent_exploration(file: Path, line: str, steps: int) -> None:
    file.write_text(FILE.replace("sde_sample_freq: 4", line))
    policy = converted(file, "Sde-v0").tree["policy"]
    assert (policy["distribution"], policy["log_std"], policy["sde_sample_freq"]) == ("gsde", -3.3, steps)


def test_recurrent_policy(file: Path) -> None:
    _, tree, notes = converted(file, "Recurrent-v0")
    policy = tree["policy"]
    assert (policy["core"], policy["core_size"], policy["core_layers"]) == ("lstm", 64, 1)
    assert (policy["hidden"], policy["head_hidden"]) == ([], [32])
    assert (tree["rollout"]["steps"], tree["ppo"]["minibatches"]) == (128, 8)
    assert [note.split(":")[0] for note in notes] == ["enable_critic_lstm"]


def test_layers_after_an_encoder_of_images(file: Path) -> None:
    _, tree, notes = converted(file, "Deep-v0")
    policy = tree["policy"]
    assert (policy["encoder"], policy["head_hidden"], policy["activation"]) == ("nature", [32, 16], "tanh")
    assert notes == ["net_arch: the critic has the widths of the policy, [32, 16]"]


def test_batch_size_that_does_not_divide_the_samples(file: Path) -> None:
    _, tree, notes = converted(file, "Odd-v0")
    assert tree["ppo"]["minibatches"] == 2
    assert notes == ["batch_size 64 does not divide 100 samples: 2 minibatches of 50 instead"]


def test_layers_as_in_older_versions(file: Path) -> None:
    assert converted(file, "Old-v0").tree["policy"]["hidden"] == [8]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("A-v0: [1]", "a hyperparameter file of rl-baselines3-zoo maps environments to their arguments"),
        ("- A-v0", "a hyperparameter file of rl-baselines3-zoo maps environments to their arguments"),
        ("A-v0: {n_envs: many}", "A-v0: n_envs is 'many': it must be a whole number from 1 to 1e12"),
        ("A-v0: {n_steps: 0.5}", "A-v0: n_steps is 0.5: it must be a whole number from 1 to 1e12"),
        ("A-v0: {n_steps: .inf}", "A-v0: n_steps is inf: it must be a whole number"),
        ("A-v0: {n_steps: 1.0e+12}", "A-v0: n_envs x n_steps is 1,000,000,000,000: it must be at most 1,000,000,000"),
        ("A-v0: {learning_rate: cos_1}", "A-v0: learning_rate is 'cos_1': it must be a number or lin_NUMBER"),
        ("A-v0: {vf_coef: high}", "A-v0: vf_coef is 'high': it must be a number"),
        ("A-v0: {policy_kwargs: 'print(1)'}", "A-v0: policy_kwargs is 'print(1)': it must be a dict of literals"),
        ("A-v0: {policy_kwargs: 'dict(net_arch=[])'}", "A-v0: net_arch is []: it must have at least one width"),
        ("A-v0: {policy_kwargs: 'dict(activation_fn=nn.Foo)'}", "A-v0: activation_fn is 'Foo': it must be one of Tanh"),
        ("A-v0: {env_wrapper: [3]}", "A-v0: env_wrapper has 3: a wrapper is a path, or a path with its arguments"),
        ("A-v0: !!python/object/apply:os.getcwd []", "could not determine a constructor for the tag"),
        ("A-v0: {", "while parsing"),
        ("B-v1: {}", "has no entry for env.id 'A-v0'; the nearest are B-v1"),
    ],
)
def test_invalid_file_is_an_error_of_one_line(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "ppo.yml"
    path.write_text(text)
    with pytest.raises(ValueError) as error:  # noqa: PT011
        convert_zoo(path, "A-v0")
    line = str(error.value)
    assert line.startswith(str(path))
    assert problem in line
    assert "\n" not in line


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="No such file or directory"):
        convert_zoo(tmp_path / "none.yml", "A-v0")


def test_flags_override_the_entry(run_cli: Any, file: Path) -> None:
    printed = run_cli("config", "--from-zoo", str(file), "--env", "Walker-v4", "--ppo.gamma", 0.9)
    assert printed.rc == 0, printed
    assert "gamma: 0.9\n" in printed.stdout
    refused = run_cli("config", "mujoco", "--from-zoo", str(file), "--env", "Walker-v4")
    assert (refused.rc, refused.stderr.count("\n")) == (2, 1)
    missing = run_cli("config", "--from-zoo", str(file))
    assert missing.stderr == (
        "lockstep: --from-zoo: --env is missing: it names the environment whose entry is converted\n"
    )

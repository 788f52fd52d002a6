"""Files of older versions of the config format keep their meaning."""

from pathlib import Path

from lockstep.config import VERSION
from lockstep.config.compose import load, merged_tree
from lockstep.config.files import read
from lockstep.config.versions import former_defaults


def test_the_current_version_has_no_former_defaults() -> None:
    assert former_defaults(VERSION) == {}


def test_a_file_of_version_1_has_the_defaults_of_version_1(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("version: 1\nppo: {epochs: 6}\n")
    config = load(None, path, {})
    assert (config.rollout.steps, config.ppo.epochs, config.ppo.minibatches) == (128, 6, 4)
    assert (config.ppo.learning_rate, config.ppo.recompute_advantages, config.ppo.normalize_rewards) == (
        3e-4,
        False,
        False,
    )
    assert (config.ppo.gamma, config.ppo.learning_rate_kl, config.ppo.learning_rate_kl_max) == (0.99, None, 100)
    assert (config.policy.log_std, config.policy.normalize_observations) == (0.0, False)
    assert merged_tree(None, path, {})["rollout"] == {"steps": 128}


def test_flags_and_presets_override_former_defaults(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("version: 1\n")
    preset = {"rollout": {"steps": 64}}
    config = load(preset, path, {"ppo": {"epochs": "3"}})
    assert (config.rollout.steps, config.ppo.epochs) == (64, 3)


def test_a_file_without_a_version_has_the_current_defaults(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("ppo: {clip: 0.1}\n")
    assert load(None, path, {}).ppo.minibatches is None


def test_former_names_of_fields_are_read(tmp_path: Path) -> None:
    path = tmp_path / "former.yaml"
    path.write_text("curiosity: {kind: re3, neighbours: 4}\nppo: {epochs: 2}\n")
    assert read(path).tree == {"curiosity": {"kind": "re3", "neighbors": 4}, "ppo": {"epochs": 2}}
    path.write_text("curiosity.neighbours: 4\ncuriosity.kind: re3\nplan: {correction: behaviour}\n")
    config = load(None, path, {})
    assert (config.curiosity.neighbors, config.plan.correction) == (4, "behavior")

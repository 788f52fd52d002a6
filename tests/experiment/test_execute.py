"""Configs of existing runs."""

from pathlib import Path

import pytest

from lockstep.config import VERSION, Config
from lockstep.config.decode import encode
from lockstep.experiment.execute import open_run
from lockstep.run.folder import RunFolder


def run_of_version(version: object, path: Path, **ppo: object) -> Path:
    """Create a run whose config leaves out fields of PPO that did not exist yet."""
    RunFolder.create(path, {"version": version, **encode(Config()), "ppo": ppo}, {"python": "3"})
    return path


def test_a_run_of_version_1_continues_with_the_former_meaning_of_missing_fields(tmp_path: Path) -> None:
    _, config = open_run(run_of_version(1, tmp_path / "old", learning_rate_kl=0.02))
    assert (config.ppo.learning_rate_kl, config.ppo.learning_rate_kl_max, config.ppo.gamma) == (0.02, 100, 0.99)
    assert (config.ppo.recompute_advantages, config.ppo.normalize_rewards) == (False, False)
    _, config = open_run(run_of_version(VERSION, tmp_path / "new", learning_rate_kl=0.02))
    assert (config.ppo.learning_rate_kl_max, config.ppo.gamma, config.ppo.recompute_advantages) == (1, 0.99, True)


@pytest.mark.parametrize(
    ("version", "message"), [(VERSION + 1, "newer than this lockstep reads"), ("1", "has no version")]
)
def test_a_run_of_an_unknown_version_is_refused_in_one_line(version: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        open_run(run_of_version(version, tmp_path / "run"))
    assert "\n" not in str(caught.value)

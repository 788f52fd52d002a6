"""Configs of existing runs."""

import errno
from pathlib import Path

import pytest

import lockstep
from lockstep.config import VERSION, Config
from lockstep.config.decode import decode, encode
from lockstep.experiment.build import RankComponents
from lockstep.experiment.execute import create_run, decode_config, open_run
from lockstep.run.folder import RunFolder
from lockstep.run.run import TrainingRun


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
    ("version", "message"),
    [
        (VERSION + 1, f"config version {VERSION + 1} is newer than this lockstep reads ({VERSION}): upgrade lockstep"),
        *(
            (version, f"version is {version!r}: it must be a whole number from 1 to {VERSION}")
            for version in (0, -1, "2", 2.5, True, None)
        ),
    ],
)
def test_a_run_of_an_unknown_version_is_refused_in_one_line(version: object, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="version") as caught:
        open_run(run_of_version(version, tmp_path / "run"))
    assert str(caught.value) == f"{tmp_path / 'run' / 'config.json'}: {message}"


def test_a_run_with_a_former_name_of_a_field_is_read(tmp_path: Path) -> None:
    tree = {"version": VERSION, "curiosity": {"neighbours": 7}}
    assert decode_config(tree, tmp_path / "config.json").curiosity.neighbors == 7


def test_a_run_records_which_fields_were_left_open(tmp_path: Path) -> None:
    asked = decode(
        {"run": {"folder": str(tmp_path)}, "env": {"count": 8, "engine": "auto"}, "plan": {"shards": 2}}, Config()
    )
    # the number of environments follows from a setting, such as env.per_rank, so it was not left open
    config = decode({"env": {"count": 4, "engine": "gymnasium"}, "policy": {"squash": False}}, asked)
    assert create_run(config, None, 1, asked).environment()["decided"] == ["env.engine", "policy.squash"]
    assert "decided" not in create_run(config, None, 1).environment()


def test_an_unknown_field_of_a_run_is_named_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown key") as caught:
        open_run(run_of_version(VERSION, tmp_path / "run", clpi=0.1))
    assert str(caught.value) == f"{tmp_path / 'run' / 'config.json'}: ppo.clpi: unknown key; did you mean ppo.clip?"


def test_a_run_without_a_version_is_refused(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", encode(Config()), {})
    with pytest.raises(ValueError, match="has no version: it was not written by lockstep"):
        open_run(tmp_path / "run")


def test_environments_are_closed_although_the_run_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed, close = [], RankComponents.close

    def fail(run: TrainingRun) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(TrainingRun, "close", fail)
    monkeypatch.setattr(RankComponents, "close", lambda self: closed.append(close(self)))
    with pytest.raises(OSError, match="the disk fails"):
        lockstep.train(
            env="CartPole-v1",
            total_steps=256,
            run={"folder": str(tmp_path), "progress": "off"},
            rollout={"steps": 32},
            runtime={"compile": "off"},
        )
    assert closed == [None]

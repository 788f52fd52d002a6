"""Fingerprints: which files, fields and versions are in them."""

import sys
from pathlib import Path

import gymnasium as gym
import pytest

import lockstep
from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.envs.modules import import_environments
from lockstep.experiment.fingerprint import describe_dispatch, make_fingerprint


def sources(config: Config) -> dict[str, str]:
    return dict(make_fingerprint(config)["source"])


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that registers an environment and imports another module of the folder, and an installed package."""
    (tmp_path / "lanes.py").write_text("WIDTH = 3\n")
    (tmp_path / "racing.py").write_text(
        "import gymnasium, lanes, wheels\n"
        "gymnasium.register('Race-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv', max_episode_steps=9)\n"
    )
    installed = tmp_path / "env" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "wheels.py").write_text("ROUND = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(installed))
    yield tmp_path
    gym.registry.pop("Race-v0", None)
    for name in ("racing", "lanes", "wheels"):
        sys.modules.pop(name, None)


def test_sources_are_those_of_lockstep_and_of_the_users_folder(project: Path) -> None:
    import_environments("racing")
    config = decode({"env": {"id": "Race-v0", "module": "racing"}}, Config())
    before = sources(config)
    assert {name for name in before if not name.startswith("lockstep: ")} >= {"racing: racing.py", "racing: lanes.py"}
    assert not [name for name in before if "wheels" in name or "site-packages" in name]
    assert "lockstep: config/decode.py" in before
    (project / "lanes.py").write_text("WIDTH = 4\n")
    after = sources(config)
    assert [name for name in after if after[name] != before[name]] == ["racing: lanes.py"]


def test_installed_module_is_one_file(project: Path) -> None:
    import_environments("racing")
    users = [
        name for name in sources(decode({"env": {"module": "wheels"}}, Config())) if not name.startswith("lockstep: ")
    ]
    assert "wheels: wheels.py" in users
    assert [name for name in users if name.startswith("wheels: ")] == ["wheels: wheels.py"]


def test_config_without_the_fields_of_a_host() -> None:
    config = make_fingerprint(decode({"run": {"seed": 3}, "policy": {"hidden": [8, 9]}}, Config()))["config"]
    assert config["run.seed"] == "3"
    assert config["policy.hidden"] == "[8, 9]"
    assert not {"run.folder", "runtime.device", "run.progress"} & config.keys()


def test_versions_of_imported_packages() -> None:
    versions = make_fingerprint(Config())["version"]
    assert versions["lockstep"] == lockstep.__version__
    assert versions["gymnasium"] == gym.__version__
    assert {"Python", "torch", "numpy"} <= versions.keys()


def test_dispatch_names_variables_and_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MKL_CBWR", "AVX2")
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    dispatch = describe_dispatch()
    assert (dispatch["MKL_CBWR"], dispatch["ATEN_CPU_CAPABILITY"]) == ("AVX2", "not set")
    assert dispatch["the processor"]

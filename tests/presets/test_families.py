import pytest

import lockstep
from lockstep import presets
from lockstep.config.compose import load
from lockstep.experiment.resolve import resolve
from lockstep.presets.families import FAMILIES


@pytest.mark.parametrize("name", FAMILIES)
def test_family_presets_leave_environment_and_goal_to_the_user(name: str) -> None:
    tree = presets.read(name)
    assert "id" not in tree.get("env", {})
    assert "solved_return" not in tree["run"]


@pytest.mark.extra("ale_py", "envpool")
@pytest.mark.parametrize("name", FAMILIES)
def test_family_presets_fit_their_example(name: str) -> None:
    config = load(presets.read(name), None, {"env": {"id": FAMILIES[name].example}})
    assert resolve(config, 1, preset=name).env.id == FAMILIES[name].example


@pytest.mark.parametrize(
    ("name", "env_id", "message"),
    [
        ("atari", "CartPole-v1", "preset atari: CartPole-v1 has no images; use the preset classic"),
        ("atari", "Pendulum-v1", "preset atari: Pendulum-v1 has no images; use the preset mujoco"),
        ("mujoco", "CartPole-v1", "preset mujoco: CartPole-v1 has discrete actions only; use the preset classic"),
        ("classic", "CarRacing-v3", "preset classic: CarRacing-v3 has images; use the preset atari"),
    ],
)
def test_a_family_without_the_environment_names_one_that_fits(run_cli, name: str, env_id: str, message: str) -> None:
    finished = run_cli("train", name, "--env", env_id)
    assert (finished.rc, finished.stderr.strip()) == (2, f"lockstep: {message}")


@pytest.mark.parametrize("words", [("train", "box2d"), ("sweep", "box2d", "--over", "run.seed=1..2")])
def test_family_presets_need_an_environment(run_cli, words: tuple[str, ...]) -> None:
    finished = run_cli(*words)
    assert finished.rc == 2
    assert finished.stderr.strip() == (
        "lockstep: --env is missing: the preset is for a family of environments; choose one, such as --env LunarLander-v3"
    )


def test_python_and_sweeps_check_the_family_too(run_cli) -> None:
    with pytest.raises(ValueError, match=r"^--env is missing: .* such as --env Hopper-v5$"):
        lockstep.train("mujoco")
    message = "preset mujoco: CartPole-v1 has discrete actions only; use the preset classic"
    with pytest.raises(ValueError, match=f"^{message}$"):
        lockstep.train("mujoco", env="CartPole-v1")
    finished = run_cli("sweep", "mujoco", "--env", "CartPole-v1", "--over", "run.seed=1..2")
    assert (finished.rc, finished.stderr.strip()) == (2, f"lockstep: {message}")


def test_families_are_listed_first(run_cli) -> None:
    rows = [line.split()[0] for line in run_cli("presets").stdout.splitlines()[1 : len(FAMILIES) + 1]]
    assert rows == sorted(FAMILIES)

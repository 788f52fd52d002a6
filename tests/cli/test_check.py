"""`lockstep check`: findings and speeds through the command line."""

from pathlib import Path

import pytest

from lockstep.bench import stepping
from lockstep.cli.main import main
from lockstep.config import Config

MODULE = """
import gymnasium as gym
import numpy as np

class Noisy(gym.Env):
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.random.uniform(-1, 1, 3).astype(np.float32), 0.0, False, True, {}

gym.register("Noisy-v0", Noisy, max_episode_steps=9)
"""


@pytest.mark.slow
@pytest.mark.extra("envpool", "pygame")
def test_findings_and_speed_of_every_engine(run_cli) -> None:
    done = run_cli("check", "CartPole-v1")
    assert (done.rc, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "CartPole-v1"
    assert "  ok    spaces        observation 4 numbers (float32); action one of 2" in lines
    assert "  ok    rendering     frames of 600 × 400 pixels" in lines
    first = lines.index(next(filter(_is_title, lines))) + 1
    rates = {line.split()[0]: line.split()[1:] for line in lines[first:] if line.startswith("  ")}
    assert list(rates) == ["gymnasium", "gymnasium-vector", "gymnasium-async", "envpool"]
    assert all(int(rate[0].replace(",", "")) > 100 for rate in rates.values())
    assert [name for name, rate in rates.items() if "auto)" in rate] == ["gymnasium-vector"]


@pytest.mark.extra("envpool")
@pytest.mark.parametrize(
    ("rate", "hint"),
    [
        (199.0, ""),
        (
            250.0,
            "envpool is 2.5 times as fast here as the choice of auto; --env.engine envpool selects it, if its observations are the same\n",
        ),
    ],
)
def test_a_much_faster_engine_is_named(
    rate: float, hint: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def engine_rate(config: Config, *others: object) -> float:
        return rate if config.env.engine == "envpool" else 100.0

    monkeypatch.setattr(stepping, "engine_rate", engine_rate)
    assert main(["check", "Blackjack-v1"]) == 0
    output = capsys.readouterr().out
    assert output.partition("(env.engine auto)")[2].partition("\n")[2].endswith(hint)
    assert hint or "times as fast" not in output


def _is_title(line: str) -> bool:
    return line.startswith("steps per second")


def test_failed_check_ends_with_code_1(run_cli, tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(MODULE)
    done = run_cli("check", "--env.module", "noisy")
    assert done.rc == 1, done
    lines = done.stdout.splitlines()
    assert lines[0] == "Noisy-v0"
    failed = [line.split()[1] for line in lines if line.startswith("  FAIL")]
    assert failed == ["gymnasium", "determinism", "resume"]
    assert not any(map(_is_title, lines))


def test_an_environment_whose_episodes_are_truncated_has_a_time_limit(run_cli, tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(MODULE.replace(", max_episode_steps=9", ""))
    done = run_cli("check", "--env.module", "noisy", "--no-speed")
    assert "  ok    episodes      1 step, return 0 with random actions\n" in done.stdout


def test_environment_of_a_config_file_is_checked(run_cli, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "env: {id: CartPole-v1, wrappers: [TimeLimit(max_episode_steps=5)]}\nppo: {epochs: 3}\n"
    )
    done = run_cli("check", "--config", "run.yaml", "--no-speed")
    assert (done.rc, done.stderr) == (0, "")
    assert "5 steps" in done.stdout
    done = run_cli("check", "Acrobot-v1", "--config", "run.yaml", "--no-speed")
    assert done.stdout.splitlines()[0] == "Acrobot-v1"


def test_an_environment_without_render_mode_is_noted(run_cli, tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(MODULE)
    done = run_cli("check", "--env.module", "noisy", "--env.options", "{max_episode_steps: 5}", "--no-speed")
    (note,) = [line for line in done.stdout.splitlines() if " rendering " in line]
    assert "no videos: Noisy-v0 can't be created with render_mode='rgb_array': " in note


RENDERED = """
import gymnasium as gym
import numpy as np

class Rendered(gym.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(3, np.float32), 0.0, self.steps == 5, False, {}

    RENDER

gym.register("Rendered-v0", Rendered)
"""


@pytest.mark.parametrize(
    ("render", "reason"),
    [
        ("", "it has no method render()"),
        ("def render(self): raise RuntimeError('no\\nwindow')", "render() failed: RuntimeError: no window"),
    ],
)
def test_an_environment_that_cannot_be_rendered_is_noted_and_measured(
    render: str, reason: str, run_cli, tmp_path: Path
) -> None:
    (tmp_path / "rendered.py").write_text(RENDERED.replace("RENDER", render))
    done = run_cli("check", "--env.module", "rendered")
    assert (done.rc, done.stderr) == (0, ""), done.stdout
    lines = done.stdout.splitlines()
    assert f"  note  rendering     no videos: Rendered-v0 cannot be rendered: {reason}" in lines
    assert any(line.startswith("  gymnasium  ") for line in lines[lines.index(next(filter(_is_title, lines))) :])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (
            ("CartPole-v9x",),
            "env.id is 'CartPole-v9x': there is no such environment; did you mean 'CartPole-v1'? For one of your own, pass --env.module",
        ),
        (("CartPole-v1", "--env", "Acrobot-v1"), "CartPole-v1: the environment is given twice, also as --env"),
        (("CartPole-v1", "--ppo.epochs", "3"), "ppo.epochs: check takes only the fields of the section env"),
        (("CartPole-v1", "--no-sped"), "--no-sped: unknown flag; did you mean --no-speed?"),
    ],
)
def test_bad_input_is_reported_in_one_line(
    words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *words]) == 2
    assert capsys.readouterr() == ("", f"lockstep: {line}\n")

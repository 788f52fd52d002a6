"""`lockstep plot` on short runs."""

import json
import shutil
from pathlib import Path

import pytest

from lockstep.cli.main import main
from lockstep.experiment.execute import load_agent
from lockstep.run.folder import RunFolder

pytest.importorskip("matplotlib", reason="pip install 'lockstep-rl[report]'")
SHORT = ("--total-steps", "1500", "--env.count", "4", "--rollout.steps", "64", "--ppo.epochs", "2", "--ranks", "1")


@pytest.fixture(scope="module")
def trained(run_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder whose `runs/` holds short runs of CartPole, with two seeds and two clips, and of MountainCar."""
    folder = tmp_path_factory.mktemp("trained")
    runs = {
        "one": ("CartPole-v1", "--seed", "1"),
        "two": ("CartPole-v1", "--seed", "2"),
        "narrow": ("CartPole-v1", "--ppo.clip", "0.1"),
        "car": ("MountainCar-v0", "--curiosity.kind", "rnd"),
    }
    for name, words in runs.items():
        run_in(folder, "train", "--env", words[0], *SHORT, *words[1:], "--name", name)
        metrics = folder / "runs" / name / "metrics.jsonl"
        rows = [json.loads(line) for line in metrics.read_text().splitlines()]
        for row in rows:  # on a busy machine, the first iteration of one run may take longer than all of another one
            row["seconds"] = row["iteration"] / 10
        metrics.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return folder


@pytest.fixture
def here(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Current folder with a copy of these runs."""
    shutil.copytree(trained / "runs", tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["plot", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("one", "runs/one/plots/return.png"),
        ("one --over seconds --format svg", "runs/one/plots/return-seconds.svg"),
        ("one two", "runs/one/plots/return-compared.png"),
        ("one one", "runs/one/plots/return.png"),
        ("two --what curves", "runs/two/plots/curves.png"),
        ("one two narrow --what curves --over seconds", "runs/one/plots/curves-seconds-compared.png"),
        ("car --what curves --out new/car.svg", "new/car.svg"),
        ("one --what timing", "runs/one/plots/timing.png"),
        ("one car --what timing --over steps", "runs/one/plots/timing-compared.png"),
        ("car --what policy", "runs/car/plots/policy.png"),
        ("one --what policy", "runs/one/plots/policy.png"),
        ("one --what policy --axes 2 3", "runs/one/plots/policy-2-3.png"),
        ("one --what trajectory --video none --sample --seed 7", "runs/one/plots/trajectory.png"),
    ],
)
def test_figures_are_written(words: str, path: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, *words.split()) == (0, f"{path}\n", "")
    begins = b"<?xml" if path.endswith("svg") else b"\x89PNG"
    assert (here / path).read_bytes().startswith(begins)


def test_figures_name_seeds_fields_and_axes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert output(capsys, "one", "two", "narrow", "--out", "a.svg")[0] == 0
    text = (here / "a.svg").read_text()
    assert "(2 seeds: one, two)" in text
    assert "ppo.clip 0.1" in text
    assert output(capsys, "car", "--what", "curves", "--out", "a.svg")[0] == 0
    assert "intrinsic return" in (here / "a.svg").read_text()
    assert output(capsys, "car", "--what", "policy", "--out", "a.svg")[0] == 0
    text = (here / "a.svg").read_text()
    for words in (
        "position",
        "velocity (per step)",
        "most probable action",
        "probability of “push left”",
        "dots: visited states",
        "value (of scaled rewards)",
    ):
        assert words in text


@pytest.mark.extra("pygame", "imageio_ffmpeg")
def test_trajectory_is_drawn_with_a_video(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [f"runs/one/plots/trajectory.{ending}" for ending in ("png", "gif")]
    assert output(capsys, "one", "--what", "trajectory") == (0, "\n".join(paths) + "\n", "")
    assert (here / paths[1]).read_bytes().startswith(b"GIF89a")
    words = ("one", "--what", "trajectory", "--video", "mp4", "--out", "episode.svg")
    assert output(capsys, *words) == (0, "episode.svg\nepisode.mp4\n", "")
    assert (here / "episode.mp4").stat().st_size > 1000


def test_values_of_a_trajectory_are_those_of_the_critic(here: Path) -> None:
    import numpy as np
    import torch

    from lockstep.experiment.policy import load_policy

    folder = RunFolder.open(here / "runs" / "one")
    _, policy = load_policy(folder)
    _, agent = load_agent(folder)
    row = np.float32([0.1, -0.2, 0.03, 0.4])
    assert policy.value(row) == pytest.approx(agent.values(torch.from_numpy(row[None])).item(), rel=1e-5)
    with pytest.raises(ValueError, match="one dimension too many"):
        policy.value(row[None])


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("one car", "one is of CartPole-v1, car of MountainCar-v0: runs of one environment only can be compared"),
        (
            "car --what policy --axes 0 2",
            "--axes is 0 2: it must be two different components of 0 position, 1 velocity (per step)",
        ),
        ("car --what policy --axes 0 x", "--axes is 'x': it must be a whole number, at least 0"),
        ("car --what policy --iteration 99", "iteration is 99: runs/car has checkpoints of 5"),
        ("car --axes 0 1", "--axes: it goes with --what policy alone, not with return"),
        (
            "car --what policy --over seconds",
            "--over: it goes with --what return, evaluation, curves, timing alone, not with policy",
        ),
        ("one --what timing --sample", "--sample: it goes with --what trajectory alone, not with timing"),
        ("one --best", "--best: it goes with --what policy, trajectory alone, not with return"),
        ("one --env.module guess", "--env.module: it goes with --what policy, trajectory alone, not with return"),
        ("one --out a.jpg", "--out is a.jpg: it must end in .png or .svg"),
        ("one --out a.png --format svg", "--format is svg, but --out is a.png: remove one of the two"),
        (
            "one car --what policy --out a.png",
            "--out is a.png: --what policy makes a file for every run; give one run, or no --out",
        ),
        ("one --out file/a.png", "file/a.png cannot be written: file is not a folder; choose another path with --out"),
        ("one --out folder.png", "folder.png cannot be written: Is a directory; choose another path with --out"),
        (
            "one --what trajectory --out file/a.png --video gif",
            "file/a.gif cannot be written: file is not a folder; choose another path with --out",
        ),
    ],
)
def test_invalid_requests_are_reported_in_one_line(
    words: str, line: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "file").touch()
    (here / "folder.png").mkdir()
    before = sorted(here.rglob("*"))
    assert output(capsys, *words.split()) == (2, "", f"lockstep: {line}\n")
    assert [path for path in sorted(here.rglob("*")) if path not in before and path.name != "plots"] == []


@pytest.mark.parametrize(
    ("metrics", "what", "why"),
    [
        ("", "return", "no episode has ended yet"),
        ("", "curves", "the run has no metrics yet"),
        ("", "timing", "the run has no time metrics yet"),
        ('{"iteration": 1}\n{"env_st', "return", "no episode has ended yet"),
    ],
)
def test_run_without_metrics_is_reported(
    metrics: str, what: str, why: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "runs/one/metrics.jsonl").write_text(metrics)
    title = "one, CartPole-v1" if what == "return" else "one"
    line = f"lockstep: {title}: no data to plot: {why}\n"
    assert output(capsys, "one", "--what", what) == (2, "", line)


@pytest.mark.parametrize("words", [["one"], ["two", "one"], ["one", "--what", "curves"], ["one", "--what", "timing"]])
def test_unreadable_metrics_are_reported(words: list[str], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "runs/one/metrics.jsonl").write_text("garbage\nmore garbage\n")
    line = "lockstep: runs/one/metrics.jsonl can't be read: line 1 is not an object with an iteration, as lockstep writes them\n"
    assert output(capsys, *words) == (2, "", line)


def test_incomplete_last_line_is_ignored(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = here / "runs/one/metrics.jsonl"
    path.write_text(path.read_text() + '{"iteration": 99, "env_st')
    assert output(capsys, "one")[0] == 0


def test_run_without_checkpoint_is_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(here / "runs/car/checkpoints")
    assert output(capsys, "car", "--what", "policy") == (2, "", "lockstep: runs/car has no checkpoint yet\n")


def test_policy_map_of_image_observations_is_refused(run_cli, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "pictured.py").write_text(PICTURED)
    short = ("--total-steps", 256, *SHORT[2:])
    words = ("--env.module", "pictured", "--env", "Pictured-v0", *short)
    done = run_cli("train", *words, "--name", "seen", cwd=here)
    assert done.rc == 0, done.stderr
    words = ("seen", "--env.module", "pictured", "--what")
    done = run_cli("plot", *words, "policy", cwd=here)
    line = "observations contain images; heat maps need observations without images"
    assert done == (2, "", f"lockstep: {line}\n")
    done = run_cli("plot", *words, "trajectory", cwd=here)
    assert (done.rc, done.stdout) == (0, "runs/seen/plots/trajectory.png\n"), done.stderr
    assert done.stderr == "no video: the environment has no render mode 'rgb_array'\n"
    code, _, error = output(capsys, "seen", "--what", "policy")
    assert (code, error.count("\n")) == (2, 1)
    assert "pass --env.module pictured again" in error


PICTURED = """
import gymnasium as gym, numpy as np

class Pictured(gym.Env):
    observation_space, action_space = gym.spaces.Box(0, 255, (36, 36), np.uint8), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        self.left = 5
        return np.zeros((36, 36), np.uint8), {}

    def step(self, action):
        self.left -= 1
        return np.zeros((36, 36), np.uint8), 1.0, self.left == 0, False, {}

gym.register("Pictured-v0", Pictured, max_episode_steps=9)
"""


def test_config_that_is_not_an_object_is_reported(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = here / "runs/one/config.json"
    path.write_text(json.dumps([1]))
    assert output(capsys, "one") == (2, "", "lockstep: runs/one/config.json holds no object\n")

"""Videos of real environments, decoded and checked."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest

from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.turns import TurnTaking
from lockstep.report.rendering import choose_renderer, render_frame
from lockstep.report.video import record_video

imageio_ffmpeg = pytest.importorskip("imageio_ffmpeg", reason="pip install 'lockstep-rl[video]'")
Array = np.ndarray[Any, Any]


@pytest.fixture(autouse=True)
def headless(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "MUJOCO_GL"):
        monkeypatch.delenv(name, raising=False)


def rendered(env_id: str, **options: Any) -> Callable[[], gym.Env[Any, Any]]:
    return lambda: gym.make(env_id, render_mode="rgb_array", **options)


def push_left() -> Callable[[Array, dict[str, Any]], int]:
    return lambda observation, info: 0


def no_torque() -> Callable[[Array, dict[str, Any]], Array]:
    return lambda observation, info: np.zeros(2, dtype=np.float32)


def frames_of(path: Path) -> tuple[tuple[int, int], float, list[Array]]:
    """Decode a video with ffmpeg. Return its size, its frames per second and all frames."""
    command = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=True)
    match = re.search(rb"h264.*?, (\d+)x(\d+)\b.*?, ([\d.]+) fps", done.stderr)
    assert match, done.stderr.decode()
    width, height = int(match[1]), int(match[2])
    frames = np.frombuffer(done.stdout, np.uint8).reshape(-1, height, width, 3)
    return (width, height), float(match[3]), list(frames)


@pytest.mark.extra("pygame")
def test_video_of_cartpole(tmp_path: Path) -> None:
    path = tmp_path / "videos" / "cartpole.mp4"
    played = record_video(rendered("CartPole-v1"), push_left, path, seeds=[1, 2])
    size, rate, frames = frames_of(path)
    assert (size, rate) == ((600, 400), 50)
    # one frame before the first step and one after every step
    assert len(frames) == sum(length + 1 for _, length in played)
    assert all(total == length and 5 < length < 20 for total, length in played)
    pole = frames[0][:, :, 2] < 160
    assert 0.01 < pole.mean() < 0.1
    assert [file.name for file in path.parent.iterdir()] == ["cartpole.mp4"]


@pytest.mark.extra("pygame")
def test_seeds_determine_the_episodes(tmp_path: Path) -> None:
    once, repeated = (
        record_video(rendered("CartPole-v1"), push_left, tmp_path / name, seeds=[3, 4, 5])
        for name in ("a.mp4", "b.mp4")
    )
    assert once == repeated
    assert len(set(once)) > 1


@pytest.mark.extra("pygame", "Box2D")
def test_video_of_lunarlander(tmp_path: Path) -> None:
    played = record_video(rendered("LunarLander-v3"), push_left, tmp_path / "lander.mp4", seeds=[1])
    size, _, frames = frames_of(tmp_path / "lander.mp4")
    assert size == (600, 400)
    assert len(frames) == played[0][1] + 1
    assert (frames[0] < 20).mean() > 0.3  # the sky
    assert (frames[0] > 235).mean() > 0.1  # the ground


@pytest.mark.render
@pytest.mark.extra("mujoco")
def test_video_of_reacher_without_a_display(tmp_path: Path) -> None:
    played = record_video(rendered("Reacher-v5"), no_torque, tmp_path / "reacher.mp4", seeds=[1])
    assert os.environ["MUJOCO_GL"] == "egl"
    size, rate, frames = frames_of(tmp_path / "reacher.mp4")
    assert (size, rate, len(frames)) == ((480, 480), 50, 51)
    assert played[0][1] == 50
    assert frames[0].std() > 20  # the image is not uniform


@pytest.mark.render
@pytest.mark.extra("mujoco")
def test_the_error_names_a_renderer_that_does_not_work(environ: dict[str, str], tmp_path: Path) -> None:
    code = (
        "import gymnasium as gym\n"
        "from lockstep.report.rendering import render_frame\n"
        "env = gym.make('Reacher-v5', render_mode='rgb_array')\n"
        "env.reset(seed=1)\n"
        "try:\n    render_frame(env)\nexcept ValueError as error:\n    print(error)\n"
    )
    environ["MUJOCO_GL"] = "glfw"  # needs a window
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.count("\n") == 1
    assert "Reacher-v5 cannot be rendered with MUJOCO_GL=glfw: " in done.stdout
    assert "apt-get install libegl1 libgl1" in done.stdout


@pytest.mark.extra("mujoco")
def test_missing_renderers_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lockstep.report.rendering._EGL", ("libnowhere.so.1",))
    monkeypatch.setattr("ctypes.util.find_library", lambda name: None)
    choose_renderer()
    assert "MUJOCO_GL" not in os.environ
    env = gym.make("Reacher-v5", render_mode="rgb_array")
    env.reset(seed=1)
    with pytest.raises(ValueError, match=r"^Reacher-v5 cannot be rendered: .*`apt-get install libegl1 libgl1`.*$"):
        render_frame(env)
    env.close()


def test_the_user_chooses_the_renderer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    choose_renderer()
    assert os.environ["MUJOCO_GL"] == "osmesa"
    monkeypatch.delenv("MUJOCO_GL")
    monkeypatch.setenv("DISPLAY", ":0")
    choose_renderer()
    assert "MUJOCO_GL" not in os.environ


class OddSizedEnv(gym.Env[Array, Any]):
    """Environment that renders 7 by 5 pixels. Its `step` can be made to fail."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"
    observation_space = gym.spaces.Box(0, 1, (1,))
    action_space = gym.spaces.Discrete(1)

    def __init__(self, fails: bool = False, picture: object = None) -> None:
        self.fails, self.picture, self.steps, self.closed = fails, picture, 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.fails:
            raise RuntimeError("the environment broke")
        return np.zeros(1, np.float32), 0.5, False, self.steps == 3, {}

    def render(self) -> Any:
        return self.picture if self.picture is not None else np.full((5, 7, 3), 200, np.uint8)

    def close(self) -> None:
        self.closed = True


def test_odd_sizes_are_padded(tmp_path: Path) -> None:
    env = OddSizedEnv()
    assert record_video(lambda: env, push_left, tmp_path / "odd.mp4", seeds=[1, 2]) == [(1.5, 3), (1.5, 3)]
    size, rate, frames = frames_of(tmp_path / "odd.mp4")
    assert (size, rate, len(frames)) == ((8, 6), 30, 8)
    assert abs(frames[0].astype(int) - 200).max() < 5
    assert env.closed


@pytest.mark.parametrize(
    ("declared", "expected"),
    [
        (0.5, 0.5),
        (29.97, 29.97),
        (1, 1),
        (np.float32(12.5), 12.5),
        (None, 30),
        (0, 30),
        (-3, 30),
        (np.nan, 30),
        (1e-3, 0.1),
    ],
)
def test_frame_rate_is_that_of_the_environment(declared: Any, expected: float, tmp_path: Path) -> None:
    env = OddSizedEnv()
    env.metadata = {"render_modes": ["rgb_array"], "render_fps": declared}
    record_video(lambda: env, push_left, tmp_path / "odd.mp4", seeds=[1])
    _, rate, frames = frames_of(tmp_path / "odd.mp4")
    assert (rate, len(frames)) == (expected, 4)


def test_no_incomplete_file_remains(tmp_path: Path) -> None:
    (tmp_path / "episode.mp4").write_text("an earlier one")
    env = OddSizedEnv(fails=True)
    with pytest.raises(RuntimeError, match="the environment broke"):
        record_video(lambda: env, push_left, tmp_path / "episode.mp4", seeds=[1])
    assert [path.name for path in tmp_path.iterdir()] == ["episode.mp4"]
    assert (tmp_path / "episode.mp4").read_text() == "an earlier one"
    assert env.closed


def test_environment_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="render_mode must be 'rgb_array'"):
        record_video(lambda: OddSizedEnv(picture="a text"), push_left, tmp_path / "episode.mp4", seeds=[1])
    assert list(tmp_path.iterdir()) == []


class WithoutRender(OddSizedEnv):
    """Environment whose `render` is that of Gymnasium's base class."""

    render = gym.Env.render


class BrokenRender(OddSizedEnv):
    """Environment whose `render` raises an error."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def render(self) -> Any:
        raise self.error


class Game:
    """Game of one agent, without a method `render`."""

    possible_agents: ClassVar = ["a"]
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"]}

    def observation_space(self, agent: str) -> gym.Space[Any]:
        return OddSizedEnv.observation_space

    action_space = observation_space


@pytest.mark.parametrize(
    ("env", "reason"),
    [
        (WithoutRender(), "it has no method render()"),
        (BrokenRender(NotImplementedError("3D only,\nfor now")), "3D only, for now"),
        (BrokenRender(RuntimeError("no\n  window")), "render() failed: RuntimeError: no window"),
        (BrokenRender(AttributeError("canvas")), "render() failed: AttributeError: canvas"),
        (BrokenRender(SystemExit(3)), "render() called sys.exit(3)"),
    ],
)
def test_errors_of_render_name_the_environment_in_one_line(env: OddSizedEnv, reason: str, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailed) as caught:
        record_video(lambda: env, push_left, tmp_path / "episode.mp4", seeds=[1])
    assert str(caught.value) == f"{type(env).__name__} cannot be rendered: {reason}"
    assert list(tmp_path.iterdir()) == []


def test_an_error_of_render_names_the_game() -> None:
    with pytest.raises(EnvironmentFailed, match=r"^games/Game cannot be rendered: render\(\) failed: AttributeError: "):
        render_frame(TurnTaking(Game(), "games/Game"))


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ValueError, match=r"lockstep-rl\[video\]"):
        record_video(OddSizedEnv, push_left, tmp_path / "episode.mp4", seeds=[1])

"""Recording of an episode as arrays, as a figure and as a video."""

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lockstep.report.episode import _SpacedFrames, play_and_record, play_trajectory
from lockstep.report.gif import write_gif
from lockstep.report.trajectory import draw_trajectory


class Count(gym.Env):
    """Environment of four steps: the observation is the number of remaining steps and an image, the reward is the action."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012
    observation_space = gym.spaces.Dict(
        {"left": gym.spaces.Box(0, 9, (1,)), "picture": gym.spaces.Box(0, 255, (36, 36), np.uint8)}
    )
    action_space = gym.spaces.Discrete(3, start=5)

    def __init__(self, mode: str | None = None, broken: bool = False) -> None:
        self.render_mode, self.broken = mode, broken

    def reset(self, *, seed=None, options=None):
        self.left = 4
        return self._seen(), {}

    def step(self, action):
        self.left -= 1
        return self._seen(), float(action), False, self.left == 0, {}

    def render(self):
        return None if self.broken else np.full((101, 500, 3), 50 * self.left, np.uint8)

    def _seen(self) -> dict[str, Any]:
        return {"left": np.float32([self.left]), "picture": np.zeros((36, 36), np.uint8)}


class Unrendered(Count):
    """The same environment without render modes."""

    metadata = {"render_modes": []}  # noqa: RUF012


class Failing(Count):
    """The same environment with a `render` that raises an error."""

    def render(self):
        raise RuntimeError("no window")


def act(observation: dict[str, Any], info: dict[str, Any]) -> int:
    return 5 + int(observation["left"][0]) % 3


def value(observation: dict[str, Any], info: dict[str, Any]) -> float:
    return 10.0 * float(observation["left"][0])


def test_every_row_has_observation_action_reward_and_value() -> None:
    trajectory = play_trajectory(Count, lambda: act, value, 1, None)
    assert trajectory.observations.tolist() == [[4], [3], [2], [1]]
    assert trajectory.actions.tolist() == [[6], [5], [7], [6]]
    assert trajectory.rewards.tolist() == [6, 5, 7, 6]
    assert trajectory.values.tolist() == [40, 30, 20, 10]


def test_gif_of_the_episode(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    play_trajectory(Count, lambda: act, value, 1, tmp_path / "new" / "a.gif")
    with image.open(tmp_path / "new" / "a.gif") as gif:
        # 5 frames at 50 per second become 3 frames, each shown twice as long
        assert (gif.n_frames, gif.size, gif.info["duration"], gif.info["loop"]) == (3, (360, 73), 40, 0)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.gif"]


def test_a_gif_contains_the_frames(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    with write_gif(tmp_path / "a.gif", 10) as show:
        for level in (0, 100, 250):
            show(np.full((20, 30, 3), level, np.uint8))
    with image.open(tmp_path / "a.gif") as gif:
        assert (gif.n_frames, gif.size) == (3, (30, 20))
        for number, level in enumerate((0, 100, 250)):
            gif.seek(number)
            assert abs(np.array(gif.convert("RGB")).astype(int) - level).max() < 8


def test_a_gif_without_frames_is_not_written(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    with write_gif(tmp_path / "a.gif", 10):
        pass
    assert list(tmp_path.iterdir()) == []


def test_mp4_of_the_episode(tmp_path: Path) -> None:
    encoder = pytest.importorskip("imageio_ffmpeg")
    play_trajectory(Count, lambda: act, value, 1, tmp_path / "a.mp4")
    assert encoder.count_frames_and_secs(str(tmp_path / "a.mp4"))[0] == 5


@pytest.mark.parametrize(("declared", "frames", "milliseconds"), [(0.5, 5, 2000), (-3, 3, 70)])
def test_gif_at_an_unusual_frame_rate(declared: float, frames: int, milliseconds: int, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")

    class Slow(Count):
        metadata = {"render_modes": ["rgb_array"], "render_fps": declared}  # noqa: RUF012

    play_trajectory(Slow, lambda: act, value, 1, tmp_path / "a.gif")
    with image.open(tmp_path / "a.gif") as gif:
        assert (gif.n_frames, gif.info["duration"]) == (frames, milliseconds)


def test_without_rendering_the_arrays_are_recorded(tmp_path: Path) -> None:
    trajectory, why = play_and_record(Unrendered, lambda: act, value, 1, tmp_path / "a.gif")
    assert (len(trajectory.rewards), why) == (4, "the environment has no render mode 'rgb_array'")
    trajectory, why = play_and_record(lambda mode: Count(mode, True), lambda: act, value, 1, tmp_path / "a.gif")
    assert len(trajectory.rewards) == 4
    assert why is not None
    assert "render() returns no RGB image" in why
    assert list(tmp_path.iterdir()) == []
    trajectory, why = play_and_record(Failing, lambda: act, value, 1, tmp_path / "a.gif")
    assert (len(trajectory.rewards), why) == (4, "Failing cannot be rendered: render() failed: RuntimeError: no window")
    assert play_and_record(Count, lambda: act, value, 1, tmp_path / "a.gif")[1] is None


def test_unwritable_video_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file/a\.gif cannot be written"):
        play_trajectory(Count, lambda: act, value, 1, tmp_path / "file" / "a.gif")


def test_the_figure_has_labels(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trajectory = play_trajectory(Count, lambda: act, value, 1, None)
    draw_trajectory(trajectory, Count(), "Count", tmp_path / "a.svg", scaled=False)
    text = (tmp_path / "a.svg").read_text()
    for words in ("observation['left']", "action", "reward", "(discounted return)", "step of the episode"):
        assert words in text


@pytest.mark.parametrize("reward", [-1e30, 3e38, 1e-30, -7.0])
def test_a_constant_of_any_magnitude_is_drawn(reward: float, tmp_path: Path) -> None:
    """matplotlib warns, which is an error here, if the lowest and the highest value of an axis are equal."""
    pytest.importorskip("matplotlib")
    trajectory = play_trajectory(Count, lambda: act, value, 1, None)
    rewards = np.full(4, reward, trajectory.rewards.dtype)
    draw_trajectory(replace(trajectory, rewards=rewards), Count(), "Count", tmp_path / "a.svg", scaled=False)
    assert (tmp_path / "a.svg").stat().st_size > 0


def test_frames_are_drawn_above_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trajectory = play_trajectory(Count, lambda: act, value, 1, tmp_path / "a.gif")
    assert len(trajectory.frames) == 5
    draw_trajectory(trajectory, Count(), "Count", tmp_path / "a.svg", False, "an episode")
    text = (tmp_path / "a.svg").read_text()
    assert text.count("<image") == 1
    assert "an episode" in text


def test_frames_of_a_long_episode_are_the_middles_of_equal_parts() -> None:
    frames = _SpacedFrames()
    for step in range(1000):
        frames.add(np.full((1, 1, 3), step // 4, np.uint8))
    shown = [4 * int(frame[0, 0, 0]) for frame in frames.middles()]
    assert shown == pytest.approx([1000 * (part + 0.5) / 8 for part in range(8)], abs=40)


def test_discrete_values_are_drawn_as_steps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    trajectory = play_trajectory(Count, lambda: act, lambda observation, info: value(observation, info) / 7, 1, None)
    draw_trajectory(trajectory, Count(), "Count", tmp_path / "a.svg", scaled=False)
    lines = re.findall(
        r'<path d="([^"]+)" clip-path="[^"]+" style="fill: none; stroke: #0072b2', (tmp_path / "a.svg").read_text()
    )
    stepped = []
    for line in lines:
        points = [tuple(map(float, point.split())) for point in re.split("[ML]", line)[1:]]
        assert len(points) >= 4
        stepped.append(all(start[0] == end[0] or start[1] == end[1] for start, end in pairwise(points)))
    assert stepped == [True, True, True, False]  # the observation, the action, the reward, the value


@pytest.mark.parametrize("size", [3, 17])
def test_few_components_are_drawn_in_panels_and_many_as_rows(size: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    class Wide(Unrendered):
        observation_space = action_space = gym.spaces.Box(-1, 1, (size,))

        def step(self, action):
            _, _, terminated, truncated, info = super().step(0)
            return self._seen(), 1.0, terminated, truncated, info

        def _seen(self):
            return np.linspace(-1, 1, size, dtype=np.float32) * self.left

    env = Wide()
    trajectory = play_trajectory(
        lambda mode: env, lambda: lambda observation, info: observation, lambda observation, info: 0.0, 1, None
    )
    assert trajectory.observations.shape == trajectory.actions.shape == (4, size)
    draw_trajectory(trajectory, env, "Wide", tmp_path / "a.svg", scaled=True)
    text = (tmp_path / "a.svg").read_text()
    assert ("observation[2]" in text, "by component" in text) == (size == 3, size == 17)
    assert ("-1 to 1" in text) == (size == 3)

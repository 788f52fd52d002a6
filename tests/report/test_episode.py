"""An episode as numbers, as a picture and as a film."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from lockstep.report.episode import film_if_drawn, play_trajectory
from lockstep.report.gif import gif
from lockstep.report.trajectory import draw_trajectory


class Count(gym.Env):
    """Shows how many steps are left, beside a picture, and pays what the action is."""

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


class Blind(Count):
    metadata = {"render_modes": []}  # noqa: RUF012


def act(observation: dict[str, Any], info: dict[str, Any]) -> int:
    return 5 + int(observation["left"][0]) % 3


def value(observation: dict[str, Any], info: dict[str, Any]) -> float:
    return 10.0 * float(observation["left"][0])


def test_every_row_is_what_was_seen_then_done_and_what_it_gave() -> None:
    found = play_trajectory(Count, lambda: act, value, 1, None)
    assert found.observations.tolist() == [[4], [3], [2], [1]]
    assert found.actions.tolist() == [[6], [5], [7], [6]]
    assert found.rewards.tolist() == [6, 5, 7, 6]
    assert found.values.tolist() == [40, 30, 20, 10]


def test_a_gif_beside_it(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    play_trajectory(Count, lambda: act, value, 1, tmp_path / "new" / "a.gif")
    with image.open(tmp_path / "new" / "a.gif") as film:
        # of 5 frames with 50 a second every other one, twice as long
        assert (film.n_frames, film.size, film.info["duration"], film.info["loop"]) == (3, (360, 73), 40, 0)
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["a.gif"]


def test_what_is_drawn_is_in_the_film(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    with gif(tmp_path / "a.gif", 10) as show:
        for level in (0, 100, 250):
            show(np.full((20, 30, 3), level, np.uint8))
    with image.open(tmp_path / "a.gif") as film:
        assert (film.n_frames, film.size) == (3, (30, 20))
        for number, level in enumerate((0, 100, 250)):
            film.seek(number)
            assert abs(np.array(film.convert("RGB")).astype(int) - level).max() < 8


def test_a_gif_without_frames_is_none(tmp_path: Path) -> None:
    pytest.importorskip("PIL.Image")
    with gif(tmp_path / "a.gif", 10):
        pass
    assert list(tmp_path.iterdir()) == []


def test_an_mp4_beside_it(tmp_path: Path) -> None:
    encoder = pytest.importorskip("imageio_ffmpeg")
    play_trajectory(Count, lambda: act, value, 1, tmp_path / "a.mp4")
    assert encoder.count_frames_and_secs(str(tmp_path / "a.mp4"))[0] == 5


def test_where_nothing_is_drawn_the_numbers_are_still_there(tmp_path: Path) -> None:
    found, why = film_if_drawn(Blind, lambda: act, value, 1, tmp_path / "a.gif")
    assert (len(found.rewards), why) == (4, "the environment draws no pictures")
    found, why = film_if_drawn(lambda mode: Count(mode, True), lambda: act, value, 1, tmp_path / "a.gif")
    assert len(found.rewards) == 4
    assert why is not None
    assert "gives no picture" in why
    assert list(tmp_path.iterdir()) == []
    assert film_if_drawn(Count, lambda: act, value, 1, tmp_path / "a.gif")[1] is None


def test_a_film_that_cant_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file/a\.gif can't be written"):
        play_trajectory(Count, lambda: act, value, 1, tmp_path / "file" / "a.gif")


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = play_trajectory(Count, lambda: act, value, 1, None)
    draw_trajectory(found, Count(), "Count", tmp_path / "a.svg", scaled=False)
    text = (tmp_path / "a.svg").read_text()
    for words in ("observation['left']", "action", "reward", "(discounted return)", "step of the episode"):
        assert words in text


def test_discrete_values_are_drawn_as_steps(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    found = play_trajectory(Count, lambda: act, lambda seen, info: value(seen, info) / 7, 1, None)
    draw_trajectory(found, Count(), "Count", tmp_path / "a.svg", scaled=False)
    lines = re.findall(
        r'<path d="([^"]+)" clip-path="[^"]+" style="fill: none; stroke: #0072b2', (tmp_path / "a.svg").read_text()
    )
    stepped = []
    for line in lines:
        points = [tuple(map(float, point.split())) for point in re.split("[ML]", line)[1:]]
        assert len(points) >= 4
        stepped.append(all(one[0] == other[0] or one[1] == other[1] for one, other in pairwise(points)))
    assert stepped == [True, True, False]  # the observation, the reward, the value


@pytest.mark.parametrize("size", [3, 17])
def test_few_numbers_have_panels_and_many_are_rows(size: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")

    class Wide(Blind):
        observation_space = action_space = gym.spaces.Box(-1, 1, (size,))

        def step(self, action):
            _, _, terminated, truncated, info = super().step(0)
            return self._seen(), 1.0, terminated, truncated, info

        def _seen(self):
            return np.linspace(-1, 1, size, dtype=np.float32) * self.left

    env = Wide()
    found = play_trajectory(lambda mode: env, lambda: lambda seen, info: seen, lambda seen, info: 0.0, 1, None)
    assert found.observations.shape == found.actions.shape == (4, size)
    draw_trajectory(found, env, "Wide", tmp_path / "a.svg", scaled=True)
    text = (tmp_path / "a.svg").read_text()
    assert ("observation[2]" in text, "by number" in text) == (size == 3, size == 17)

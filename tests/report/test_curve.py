"""Figures of learning curves, checked through their pixels and their text."""

import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep.report.curve import draw_curve

pytest.importorskip("matplotlib", reason="pip install 'lockstep-rl[report]'")

METRICS = [
    {"env_steps": 1024, "return_mean": None, "return_mean_20": float("nan")},
    *(
        {"env_steps": 1024 * step, "return_mean": 10.0 * step + 40 * (step % 2), "return_mean_20": 10.0 * step}
        for step in range(2, 51)
    ),
]


def near(picture: np.ndarray, color: str) -> int:
    """Count the pixels whose channels differ by less than 24 of 255 from the color."""
    expected = np.array([int(color[start : start + 2], 16) for start in (0, 2, 4)])
    return int((abs(picture[..., :3] * 255 - expected).max(-1) < 24).sum())


def test_curve_as_png(tmp_path: Path) -> None:
    from matplotlib.image import imread

    draw_curve(METRICS, "cartpole-1: CartPole-v1", tmp_path / "plots" / "curve.png", goal=475)
    picture = imread(tmp_path / "plots" / "curve.png")
    assert picture.shape[:2] == (500, 800)
    assert near(picture, "0072B2") > 1000
    assert near(picture, "56B4E9") > 300
    assert near(picture, "D55E00") > 500
    assert [path.name for path in (tmp_path / "plots").iterdir()] == ["curve.png"]


def test_evaluations_are_drawn(tmp_path: Path) -> None:
    from matplotlib.image import imread

    rows = [
        {"env_steps": 1024 * step, "return_mean": 5.0 * step, "sampled_return_mean": 4.0 * step} for step in range(51)
    ]
    draw_curve(METRICS, "run", tmp_path / "curve.png", evaluations=rows)
    assert near(imread(tmp_path / "curve.png"), "009E73") > 1000
    draw_curve(METRICS, "run", tmp_path / "plain.png")
    assert near(imread(tmp_path / "plain.png"), "009E73") == 0
    draw_curve(METRICS, "run", tmp_path / "curve.svg", evaluations=rows)
    text = (tmp_path / "curve.svg").read_text()
    assert "evaluation" in text
    assert "evaluation, sampled" in text


def test_without_a_goal_no_line_is_drawn(tmp_path: Path) -> None:
    from matplotlib.image import imread

    draw_curve(METRICS, "run", tmp_path / "curve.png")
    assert near(imread(tmp_path / "curve.png"), "D55E00") == 0


def test_an_svg_has_labels_and_is_reproducible(tmp_path: Path) -> None:
    for name in ("a.svg", "b.svg"):
        draw_curve(METRICS, "cartpole-1: CartPole-v1", tmp_path / name, goal=475)
    text = (tmp_path / "a.svg").read_text()
    for words in ("cartpole-1: CartPole-v1", "environment steps", "reward per episode", "last 20 episodes", "goal 475"):
        assert words in text
    assert text == (tmp_path / "b.svg").read_text()


@pytest.mark.parametrize(("goal", "words"), [(2000, "goal 2000 ↑"), (-900, "goal -900 ↓")])
def test_a_distant_goal_is_named_at_the_edge(tmp_path: Path, goal: float, words: str) -> None:
    draw_curve(METRICS, "run", tmp_path / "far.svg", goal=goal)
    text = (tmp_path / "far.svg").read_text()
    assert words in text
    assert ">600</text>" not in text, "the axis is not stretched"
    assert ">500</text>" in text


def test_curve_with_a_single_point(tmp_path: Path) -> None:
    draw_curve([{"env_steps": 1024, "return_mean_20": 22.0}], "run", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 0


@pytest.mark.parametrize("metrics", [[], METRICS[:1]])
def test_run_without_values_is_rejected(metrics: list[dict[str, float | None]], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no episode has ended"):
        draw_curve(metrics, "run", tmp_path / "curve.png")
    assert list(tmp_path.iterdir()) == []


def test_unknown_file_suffix_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"must end in \.png or \.svg"):
        draw_curve(METRICS, "run", tmp_path / "curve.jpg")


def test_a_missing_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"lockstep-rl\[report\]"):
        draw_curve(METRICS, "run", tmp_path / "curve.png")

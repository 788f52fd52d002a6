"""The window of the last episodes, which does not depend on the number of shards."""

import numpy as np
import pytest
import torch

from lockstep.randomness import stream
from lockstep.rollout import Rollout, Sizes
from lockstep.run.episodes import EPISODE_ROW, EpisodeWindow, write_episode_row
from lockstep.run.settings import WINDOW

STEPS, ENVIRONMENTS = 30, 4


def episodes_of(iteration: int, share: float) -> torch.Tensor:
    """Return episodes `[T, environments, 2]` that end in a `share` of the rows. Returns are whole numbers, so their sums are exact."""
    generator = stream(1, "test", iteration)
    ended = generator.random((STEPS, ENVIRONMENTS)) < share
    episodes = torch.full((STEPS, ENVIRONMENTS, 2), torch.nan, dtype=torch.float64)
    numbers = torch.from_numpy(generator.integers(1, 500, (int(ended.sum()), 2))).double()
    episodes[torch.from_numpy(ended)] = numbers
    return episodes


def rows_of(episodes: torch.Tensor, shards: int) -> np.ndarray:
    count = ENVIRONMENTS // shards
    rows = []
    for shard in range(shards):
        rollout = Rollout.empty(Sizes(STEPS, count, 1, None, (), torch.float32))
        rollout.episodes[:] = episodes[:, shard * count : (shard + 1) * count]
        rollout.valid[0] = False
        rows.append(np.full(EPISODE_ROW, 7.0))
        write_episode_row(rollout, shard * count, rows[-1])
    return np.stack(rows)


@pytest.mark.parametrize("share", [0.0, 0.03, 0.15, 0.9])
def test_window_does_not_depend_on_the_number_of_shards(share: float) -> None:
    windows = {shards: EpisodeWindow() for shards in (1, 2, 4)}
    for iteration in range(6):
        episodes = episodes_of(iteration, share)
        found = {shards: window.add(rows_of(episodes, shards)) for shards, window in windows.items()}
        in_order = [episode[0].item() for row in episodes for episode in row if not episode[0].isnan()]
        for shards, window in windows.items():
            assert list(window.returns)[-len(in_order) :] == in_order[-WINDOW:] or not in_order
            assert list(window.returns) == list(windows[1].returns)
            for name in ("episodes", "length_mean", "return_mean", "return_min", "return_max", "return_mean_20"):
                assert found[shards][name] == found[1][name]


def test_metrics_computed_by_hand() -> None:
    episodes = torch.full((STEPS, ENVIRONMENTS, 2), torch.nan, dtype=torch.float64)
    episodes[4, 3], episodes[4, 0], episodes[2, 1] = torch.tensor([[10.0, 5.0], [20.0, 6.0], [60.0, 1.0]]).double()
    rows = rows_of(episodes, 2)
    assert rows.shape == (2, 6 + 4 * WINDOW)
    assert rows[:, 0].tolist() == [(STEPS - 1) * 2] * 2  # reset rows are no steps
    window = EpisodeWindow([1.0] * 16)
    assert window.add(rows) == {
        "episodes": 3, "return_mean": 30, "return_min": 10, "return_max": 60, "return_mean_20": None, "length_mean": 4,
    }  # fmt: skip
    assert list(window.returns)[16:] == [60, 20, 10]  # by time, then environment
    episodes[:] = torch.nan
    episodes[0, 0] = torch.tensor([5.0, 1.0])
    assert window.add(rows_of(episodes, 2))["return_mean_20"] == (16 + 90 + 5) / 20


def test_metrics_without_finished_episodes() -> None:
    found = EpisodeWindow([3.0]).add(rows_of(episodes_of(0, 0.0), 2))
    assert found["episodes"] == 0
    assert {found[name] for name in ("return_mean", "return_min", "return_max", "return_mean_20", "length_mean")} == {
        None
    }

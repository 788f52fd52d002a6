import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.report import evaluate
from lockstep.report.evaluate import Evaluation, play_episodes, play_together


def test_the_interval_equals_a_value_computed_by_hand() -> None:
    # standard deviation of 1, 2, 3, 4 with n - 1: sqrt(5 / 3)
    evaluation = Evaluation([1.0, 2.0, 3.0, 4.0], [5, 5, 5, 5])
    assert evaluation.interval == pytest.approx(1.96 * math.sqrt(5 / 3) / 2)
    assert "return  2.5 ± 1.27 (95% interval of the mean), 1 to 4" in evaluation.lines()


def test_one_episode_has_no_interval() -> None:
    evaluation = Evaluation([3.0], [7])
    assert evaluation.interval is None
    assert evaluation.lines() == "return  3, 3 to 3\nlength  7, 7 to 7 steps"


def right(observation: NDArray[np.float32], info: dict[str, Any]) -> int:
    assert observation.shape == (4,)
    return 1


def test_episodes_are_complete_and_start_with_their_seeds() -> None:
    env = gym.make("CartPole-v1")
    first, second, repeated = play_episodes(env, lambda: right, [1, 2, 1])
    assert first == repeated
    assert all(total == length and 5 < length < 20 for total, length in (first, second))
    env.close()


def test_truncation_ends_an_episode() -> None:
    env = gym.make("Pendulum-v1")
    episodes = list(play_episodes(env, lambda: lambda observation, info: np.zeros(1), [1]))
    assert [length for _, length in episodes] == [200]
    assert episodes[0][0] < 0
    env.close()


def test_endless_episode_is_ended_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "MAX_STEPS", 50)
    env = gym.make("Pendulum-v1", max_episode_steps=10**6)
    episodes = list(play_episodes(env, lambda: lambda observation, info: np.zeros(1), [1, 2]))
    env.close()
    assert [length for _, length in episodes] == [50, 50]
    lines = Evaluation([total for total, _ in episodes], [50, 49]).lines().splitlines()
    assert lines[2].startswith("note    1 of 2 episodes were ended after 50 steps: set a time limit")


def test_episodes_at_the_same_time_are_those_of_a_loop() -> None:
    seeds, seen = [1, 2, 3], []

    def act(observations: Sequence[Any], infos: Sequence[dict[str, Any]]) -> list[int]:
        assert len(infos) == 3
        seen.append([tuple(observation) for observation in observations])
        return [1] * 3

    envs = [gym.make("CartPole-v1") for _ in seeds]
    together = play_together(envs, act, seeds)
    assert together == list(play_episodes(envs[0], lambda: right, seeds))
    lengths = [length for _, length in together]
    assert len(set(lengths)) > 1
    assert len(seen) == max(lengths)
    shortest = lengths.index(min(lengths))
    # the last observation before its end, again and again
    assert len({step[shortest] for step in seen}) == min(lengths)


def test_no_environment_is_stepped_after_its_end() -> None:
    class Ending(gym.Env[int, int]):
        observation_space, action_space = gym.spaces.Discrete(9), gym.spaces.Discrete(9)  # type: ignore[assignment]

        def reset(
            self, *, seed: int | None = None, options: dict[str, Any] | None = None
        ) -> tuple[int, dict[str, Any]]:
            self.left = seed or 0
            return 0, {"action_mask": 1}

        def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
            assert self.left > 0
            self.left -= 1
            return 0, float(action), self.left == 0, False, {"action_mask": 1} if self.left else {}

    def act(observations: Sequence[Any], infos: Sequence[dict[str, Any]]) -> list[int]:
        assert all(info == {"action_mask": 1} for info in infos)
        return [2, 3]

    assert play_together([Ending(), Ending()], act, [1, 3]) == [(2.0, 1), (9.0, 3)]

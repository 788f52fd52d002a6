"""The actions that environments receive lie in their action spaces."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

import lockstep
from lockstep.algorithm.acting import clip, squash
from lockstep.envs.actions import action_converter, each_action
from lockstep.envs.spaces import describe

OBSERVATION_SPACE = Box(-1, 1, (1,))
DTYPES = (np.float16, np.float32, np.float64)
LARGE = {np.float16: 6e4, np.float32: 1e38, np.float64: 1e300}


@st.composite
def boxes(draw: st.DrawFn) -> Box:
    dtype = draw(st.sampled_from(DTYPES))
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    number = st.floats(-LARGE[dtype], LARGE[dtype]) | st.floats(-1, 1) | st.just(0.1) | st.integers(-3, 3)
    pairs = [sorted((draw(number), draw(number))) for _ in range(int(np.prod(shape)))]
    with np.errstate(over="ignore"):
        low, high = np.array(pairs, dtype=dtype).T.reshape(2, *shape)
    unbounded = draw(st.sampled_from(["", "low", "high"]))
    low = np.full_like(low, -np.inf) if unbounded == "low" else low
    high = np.full_like(high, np.inf) if unbounded == "high" else high
    return Box(low, high, shape, dtype)


@settings(max_examples=150, deadline=None)
@given(
    boxes(), st.lists(st.floats(-5e4, 5e4, width=32), min_size=8, max_size=8), st.sampled_from([np.float32, np.float64])
)
def test_converted_actions_lie_in_the_space(space: Box, numbers: list[float], kind: type) -> None:
    spaces = describe(OBSERVATION_SPACE, space, "Boxed-v0")
    rows = np.resize(np.array(numbers, dtype=kind), (3, spaces.continuous_size))
    low, high = spaces.action_low.astype(kind), spaces.action_high.astype(kind)
    transforms = [clip(low, high, len(rows))]
    if max(abs(low).max(), abs(high).max()) < 1e30:  # squashing refuses larger bounds
        transforms.append(squash(low, high, len(rows)))
    for transform in transforms:
        for action in each_action(action_converter(space)(transform(rows))):
            assert space.contains(action), (action, space.low, space.high)


def test_actions_with_equal_bounds_lie_in_the_space() -> None:
    space = Dict({"first": Discrete(2), "second": Box(0.1, 0.1, (1,), np.float64)})
    batch = action_converter(space)(np.float32([[1, 0.1], [0, 0.1]]))
    assert all(map(space.contains, each_action(batch)))
    assert batch["second"].tolist() == [[0.1], [0.1]]


class Strict(gym.Env):
    """Environment that refuses actions outside its space; float32 can't represent the bounds exactly."""

    observation_space = OBSERVATION_SPACE
    action_space = Box(np.array([-0.1, 0.3]), np.array([0.1, 0.7]), dtype=np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps_left = 8
        return np.zeros(1, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.steps_left -= 1
        return np.zeros(1, np.float32), 0.0, self.steps_left == 0, False, {}


@pytest.mark.parametrize("squashed", [False, True])
def test_training_keeps_actions_within_float64_bounds(squashed: bool, tmp_path) -> None:
    run = lockstep.train(
        env=Strict,
        total_steps=256,
        rollout={"steps": 16},
        ppo={"minibatches": 2},
        policy={"squash": squashed, "log_std": 2.0},  # most samples are beyond the bounds
        run={"folder": str(tmp_path), "progress": "off"},
    )
    assert not run.stopped

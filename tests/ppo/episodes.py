"""Random rollouts with ends of episodes and reset rows."""

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from torch import Tensor

STEPS, COUNT = 9, 2
numbers = arrays(np.float64, (STEPS, COUNT), elements=st.floats(-100, 100))
booleans = arrays(np.bool_, (STEPS, COUNT))


@st.composite
def rollouts(draw: st.DrawFn) -> dict[str, Tensor]:
    terminated, truncated = draw(booleans), draw(booleans)
    valid = np.ones((STEPS, COUNT), dtype=bool)
    for t in range(1, STEPS):  # the row after the end of an episode is a reset row, which ends no episode
        valid[t] = ~(terminated | truncated)[t - 1]
        terminated[t] &= valid[t]
        truncated[t] &= valid[t]
    rewards = draw(numbers) * valid
    values = np.concatenate([draw(numbers), draw(numbers)[:1]])
    arrays_by_name = {
        "rewards": rewards,
        "values": values,
        "terminated": terminated,
        "truncated": truncated,
        "valid": valid,
    }
    return {name: torch.from_numpy(value) for name, value in arrays_by_name.items()}


discounts = st.floats(0, 1)

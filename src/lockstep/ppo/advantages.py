"""Generalized advantage estimation."""

import numpy as np
import torch
from torch import Tensor

__all__ = ["advantages"]


def advantages(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float,
    gae_lambda: float,
) -> Tensor:
    """GAE(λ) (Schulman et al. 2016, arXiv:1506.02438, equations 11 to 16), for episodes that end inside the rollout.

        δ_t = r_t + γ V(o_{t+1}) [not terminated_t] - V(o_t)
        A_t = δ_t + γ λ A_{t+1} [neither terminated_t nor truncated_t]

    Termination cuts the bootstrap and the sum; truncation cuts only the sum, because V(o_{t+1}) is then the value of the
    episode's last observation. With λ = 0 this is the one-step TD error, with λ = 1 the Monte Carlo return minus V(o_t).

    Args:
        rewards: `[T, B]`.
        values: `[T + 1, B]`; row T values the observation after the last step.
        terminated: `[T, B]` bool.
        truncated: `[T, B]` bool.
        valid: `[T, B]` bool, False for reset rows.
        gamma: Discount per step.
        gae_lambda: λ.

    Returns:
        `[T, B]`, 0 on reset rows.
    """
    alive = ~terminated
    delta = rewards + gamma * torch.where(alive, values[1:], 0) - values[:-1]
    decay = (gamma * gae_lambda) * (alive & ~truncated).to(delta.dtype)
    # NumPy in place: a loop of small tensor operations costs 20 times as much in PyTorch
    rows, weights = list(delta.numpy()), list(decay.numpy())
    carried = np.empty_like(rows[0])
    with np.errstate(all="ignore"):  # what is not finite is found in the loss, on all ranks at once
        for t in range(len(rows) - 2, -1, -1):
            np.multiply(weights[t], rows[t + 1], out=carried)
            rows[t] += carried
    return torch.where(valid, delta, 0)

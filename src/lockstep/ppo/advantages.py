"""Generalized advantage estimation, and V-trace for samples that older weights collected."""

import numpy as np
import torch
from torch import Tensor

__all__ = ["advantages", "endless", "vtrace"]


def advantages(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float | Tensor,
    gae_lambda: float | Tensor,
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
        gamma: Discount per step, or of each step `[T, B]`.
        gae_lambda: λ, or that of each step.

    Returns:
        `[T, B]`, 0 on reset rows, whatever the values of their observations are (NaN, for example).
    """
    alive = ~terminated
    delta = rewards + gamma * torch.where(alive, values[1:], 0) - values[:-1]
    decay = (gamma * gae_lambda) * (alive & ~truncated).to(delta.dtype)
    return torch.where(valid, _accumulated(torch.where(valid, delta, 0), decay), 0)


def vtrace(
    rewards: Tensor,
    values: Tensor,
    log_ratios: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float | Tensor,
    trace_lambda: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """V-trace (Espeholt et al. 2018, arXiv:1802.01561, equation 1 with the λ of remark 2, both truncation levels 1; with the λ in
    the bootstrap of A_t too, as in DeepMind's rlax).

        ρ_t = min(1, π(a_t|o_t) / μ(a_t|o_t)),  c_t = λ ρ_t
        δ_t = ρ_t (r_t + γ V(o_{t+1}) [not terminated_t] - V(o_t))
        v_t = V(o_t) + δ_t + γ c_t (v_{t+1} - V(o_{t+1})) [neither terminated_t nor truncated_t]
        A_t = ρ_t (r_t + γ (λ v_{t+1} + (1 - λ) V(o_{t+1})) - V(o_t))

    Episodes end as in `advantages`: the A_t of a step that terminated has no v_{t+1}, that of one that was truncated has
    V(o_{t+1}) in its place. On-policy, both A_t and v_t - V(o_t) are GAE(λ).

    Args:
        rewards: `[T, B]`.
        values: `[T + 1, B]`, of the weights that are to be trained.
        log_ratios: `[T, B]`, log π - log μ of the action taken: π is to be trained, μ collected.
        terminated: `[T, B]` bool.
        truncated: `[T, B]` bool.
        valid: `[T, B]` bool, False for reset rows.
        gamma: Discount per step, or of each step `[T, B]`.
        trace_lambda: λ, or that of each step.

    Returns:
        Policy advantages A and value targets v, both `[T, B]` and 0 on reset rows.
    """
    alive, goes_on = ~terminated, ~(terminated | truncated)
    # a reset row passes nothing on to the row before it, not even the NaN of 0 * NaN
    ratios = torch.where(valid, log_ratios.clamp_max(0).exp(), 1)
    following, present = torch.where(alive, values[1:], 0), values[:-1]
    delta = torch.where(valid, ratios * (rewards + gamma * following - present), 0)
    targets = present + _accumulated(delta, (gamma * trace_lambda) * ratios * goes_on)
    mixed = following.lerp(torch.cat([targets[1:], values[-1:]]), trace_lambda)
    following = torch.where(goes_on, mixed, following)
    advantage = ratios * (rewards + gamma * following - present)
    return torch.where(valid, advantage, 0), torch.where(valid, targets, 0)


def endless(values: Tensor, valid: Tensor, gamma: float, decay: float) -> tuple[Tensor, Tensor, Tensor]:
    """Values, discounts and λ for `advantages` and `vtrace` where the return goes on over the end of an episode into the next one (Burda et
    al. 2019, arXiv:1810.12894, section 2.3), given that no step is said to end an episode.

    Reset rows are passed through: they have the value of what comes after them, and nothing is discounted there.

    Args:
        values: `[T + 1, B]`.
        valid: `[T, B]` bool, False for reset rows.
        gamma: Discount per step.
        decay: λ.

    Returns:
        `[T + 1, B]`, `[T, B]` and `[T, B]`.
    """
    passed = torch.cat([torch.where(valid, values[:-1], values[1:]), values[-1:]])
    one = torch.ones((), dtype=values.dtype)
    return passed, torch.where(valid, gamma * one, one), torch.where(valid, decay * one, one)


def _accumulated(delta: Tensor, decay: Tensor) -> Tensor:
    """`x_t = delta_t + decay_t x_{t+1}`, written over `delta`."""
    # NumPy in place: a loop of small tensor operations costs 20 times as much in PyTorch
    rows, weights = list(delta.numpy()), list(decay.numpy())
    carried = np.empty_like(rows[0])
    with np.errstate(all="ignore"):  # what is not finite is found in the loss, on all ranks at once
        for t in range(len(rows) - 2, -1, -1):
            np.multiply(weights[t], rows[t + 1], out=carried)
            rows[t] += carried
    return delta

"""Generalized advantage estimation, and V-trace for samples collected with older weights."""

import numpy as np
import torch
from torch import Tensor

from lockstep.compiling.recurrence import recur

__all__ = ["advantages", "vtrace", "without_episode_ends"]


def advantages(
    rewards: Tensor,
    values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    valid: Tensor,
    gamma: float | Tensor,
    gae_lambda: float | Tensor,
) -> Tensor:
    """Compute GAE(λ) (Schulman et al. 2016, arXiv:1506.02438, equations 11 to 16); episodes may end in the rollout.

        δ_t = r_t + γ V(o_{t+1}) [not terminated_t] - V(o_t)
        A_t = δ_t + γ λ A_{t+1} [neither terminated_t nor truncated_t]

    Termination cuts the bootstrap and the sum. Truncation cuts only the sum, because then V(o_{t+1}) is the value of
    the last observation of the episode. With λ = 0 this is the one-step TD error, with λ = 1 the Monte Carlo return
    minus V(o_t).

    Args:
        rewards: `[T, B]`.
        values: `[T + 1, B]`; row T is the value of the observation after the last step.
        terminated: `[T, B]` bool.
        truncated: `[T, B]` bool.
        valid: `[T, B]` bool, False for reset rows.
        gamma: Discount per step, or of each step `[T, B]`.
        gae_lambda: λ, one number or one per step `[T, B]`.

    Returns:
        Advantages `[T, B]`, 0 on reset rows, whatever the values of their observations are (NaN, for example).
    """
    alive = ~terminated
    delta = rewards + gamma * torch.where(alive, values[1:], 0) - values[:-1]
    decay = (gamma * gae_lambda) * (alive & ~truncated).to(delta.dtype)
    return torch.where(valid, _accumulate(torch.where(valid, delta, 0), decay), 0)


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
    """Compute V-trace advantages and targets (Espeholt et al. 2018, arXiv:1802.01561, equation 1).

    λ is that of remark 2, and both truncation levels are 1. λ is also in the bootstrap of A_t, as in DeepMind's rlax.

        ρ_t = min(1, π(a_t|o_t) / μ(a_t|o_t)),  c_t = λ ρ_t
        δ_t = ρ_t (r_t + γ V(o_{t+1}) [not terminated_t] - V(o_t))
        v_t = V(o_t) + δ_t + γ c_t (v_{t+1} - V(o_{t+1})) [neither terminated_t nor truncated_t]
        A_t = ρ_t (r_t + γ (λ v_{t+1} + (1 - λ) V(o_{t+1})) - V(o_t))

    Episodes end as in `advantages`: A_t has no bootstrap if step t terminated, and V(o_{t+1}) alone in place of
    λ v_{t+1} + (1 - λ) V(o_{t+1}) if it was truncated. On-policy, both A_t and v_t - V(o_t) are GAE(λ).

    Args:
        rewards: `[T, B]`.
        values: `[T + 1, B]`, computed with the weights to be trained.
        log_ratios: `[T, B]`, log π - log μ of the action taken; π is the policy to be trained, μ that of the rollout.
        terminated: `[T, B]` bool.
        truncated: `[T, B]` bool.
        valid: `[T, B]` bool, False for reset rows.
        gamma: Discount per step, or of each step `[T, B]`.
        trace_lambda: λ, one number or one per step `[T, B]`.

    Returns:
        Policy advantages A and value targets v, both `[T, B]` and 0 on reset rows.
    """
    alive, continues = ~terminated, ~(terminated | truncated)
    # a reset row must not affect the row before it, not even by 0 * NaN
    ratios = torch.where(valid, log_ratios.clamp_max(0).exp(), 1)
    following, present = torch.where(alive, values[1:], 0), values[:-1]
    delta = torch.where(valid, ratios * (rewards + gamma * following - present), 0)
    targets = present + _accumulate(delta, (gamma * trace_lambda) * ratios * continues)
    mixed = following.lerp(torch.cat([targets[1:], values[-1:]]), trace_lambda)
    following = torch.where(continues, mixed, following)
    advantage = ratios * (rewards + gamma * following - present)
    return torch.where(valid, advantage, 0), torch.where(valid, targets, 0)


def without_episode_ends(values: Tensor, valid: Tensor, gamma: float, decay: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return values `[T + 1, B]`, discounts `[T, B]` and λ `[T, B]` for returns that continue across episode ends.

    Such returns sum the rewards over the end of an episode into the next one (Burda et al. 2019, arXiv:1810.12894,
    section 2.3). The caller must pass no step as terminated or truncated. A reset row has no effect on the return: it
    gets the value of the next row that is not a reset row, a discount of 1 and a λ of 1. `valid` `[T, B]` is False for reset rows; `decay` is λ.
    """
    rows = torch.arange(len(valid)).unsqueeze(1)
    next_valid = torch.where(valid, rows, len(valid)).flip(0).cummin(0).values.flip(0)
    filled_values = torch.cat([values.gather(0, next_valid), values[-1:]])
    one = torch.ones((), dtype=values.dtype)
    return filled_values, torch.where(valid, gamma * one, one), torch.where(valid, decay * one, one)


def _accumulate(delta: Tensor, decay: Tensor) -> Tensor:
    """Compute `x_t = delta_t + decay_t x_{t+1}`, in place in `delta`."""
    rows, weights = delta.numpy(), decay.numpy()[:-1]
    with np.errstate(all="ignore"):  # values that are not finite are found in the loss, on all ranks at once
        if bool(delta.isfinite().all()):
            recur(rows, weights, backward=True)
            return delta
        for t in range(len(weights) - 1, -1, -1):
            # 0 * NaN is NaN, which would pass on to the episode before
            rows[t] += np.where(weights[t] == 0, 0, weights[t] * rows[t + 1])
    return delta

"""Losses of PPO per sample (Schulman et al. 2017, arXiv:1707.06347).

All arguments and results are `[N]`, except that coefficients are single numbers.
"""

import torch
from torch import Tensor

__all__ = ["clipped_surrogate", "divergence", "penalized_surrogate", "value_loss"]


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip: Tensor) -> Tensor:
    """Compute the clipped surrogate (equation 7) as a loss: `-min(r A, clamp(r, 1 - ε, 1 + ε) A)`.

    The ratio is `r = exp(log_ratio) = π(a|o) / π_old(a|o)`, and ε is `clip`. With an infinite ε, the gradient of the
    loss at r = 1 is the plain policy gradient, `-A ∇ log π`.
    """
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def penalized_surrogate(log_ratio: Tensor, advantages: Tensor, coefficient: Tensor) -> Tensor:
    """Compute the KL-penalized surrogate (equation 8) as a loss: `-r A + β KL(π_old ‖ π)`, see `divergence`."""
    return -log_ratio.exp() * advantages + coefficient * divergence(log_ratio)


def divergence(log_ratio: Tensor) -> Tensor:
    """Estimate KL(π_old ‖ π) per sample as `(r - 1) - log r`, unbiased and never negative (k3 of Schulman 2020)."""
    return torch.expm1(log_ratio) - log_ratio


def value_loss(values: Tensor, targets: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """Compute the loss of the critic, `½ (V - R)²`, or with `clip` the larger of it and the same loss with V clamped to
    within `clip` of the old value (OpenAI Baselines, ppo2).
    """
    loss = 0.5 * (values - targets).square()
    if clip is None:
        return loss
    clipped_values = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(loss, 0.5 * (clipped_values - targets).square())

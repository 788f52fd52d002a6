"""PPO's losses per sample (Schulman et al. 2017, arXiv:1707.06347). All arguments and results are `[N]`; coefficients are
single numbers.
"""

import torch
from torch import Tensor

__all__ = ["clipped_surrogate", "divergence", "penalized_surrogate", "value_loss"]


def clipped_surrogate(log_ratio: Tensor, advantages: Tensor, clip: Tensor) -> Tensor:
    """Equation 7, as a loss: `-min(r A, clamp(r, 1 - ε, 1 + ε) A)` with `r = exp(log_ratio) = π(a|o) / π_old(a|o)`.

    With an infinite ε its gradient at r = 1 is that of the plain policy gradient, `-A ∇ log π`.
    """
    ratio = log_ratio.exp()
    return -torch.minimum(ratio * advantages, ratio.clamp(1 - clip, 1 + clip) * advantages)


def penalized_surrogate(log_ratio: Tensor, advantages: Tensor, coefficient: Tensor) -> Tensor:
    """Equation 8, as a loss: `-r A + β KL(π_old ‖ π)`, the divergence estimated from the actions taken."""
    return -log_ratio.exp() * advantages + coefficient * divergence(log_ratio)


def divergence(log_ratio: Tensor) -> Tensor:
    """An estimate of KL(π_old ‖ π) per sample, `(r - 1) - log r`: unbiased, never negative
    (estimator k3 of Schulman, "Approximating KL divergence", 2020).
    """
    return torch.expm1(log_ratio) - log_ratio


def value_loss(values: Tensor, targets: Tensor, old_values: Tensor, clip: float | None) -> Tensor:
    """`½ (V - R)²`; with `clip`, the larger of that and the same with V kept within `clip` of the old estimate
    (OpenAI Baselines, ppo2).
    """
    loss = 0.5 * (values - targets).square()
    if clip is None:
        return loss
    kept = old_values + (values - old_values).clamp(-clip, clip)
    return torch.maximum(loss, 0.5 * (kept - targets).square())

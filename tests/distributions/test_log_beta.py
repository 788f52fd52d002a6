import torch

from lockstep.distributions.log_beta import log_beta


def test_values_and_gradients_are_those_of_autograd_in_float64() -> None:
    alpha = torch.logspace(-1, 3, 60).repeat(2).requires_grad_()
    beta = alpha.detach().flip(0).requires_grad_()
    exact_alpha, exact_beta = alpha.double(), beta.double()
    expected = (exact_alpha.lgamma() + exact_beta.lgamma() - (exact_alpha + exact_beta).lgamma()).float()
    result = log_beta(alpha, beta)
    assert torch.equal(result, expected)
    weights = torch.linspace(-1, 2, 120)
    gradients = torch.autograd.grad((result * weights).sum(), (alpha, beta))
    for gradient, other in zip(gradients, torch.autograd.grad((expected * weights).sum(), (alpha, beta)), strict=True):
        assert torch.equal(gradient, other)
    double = torch.rand(2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) + 0.5
    assert torch.autograd.gradcheck(log_beta, tuple(double.requires_grad_().unbind()))

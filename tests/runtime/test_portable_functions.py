"""PyTorch's functions that NumPy computes for portable bits, in a process of their own: the replacement can't be undone."""

import subprocess
import sys

import pytest
from tests.conftest import plain_environ

PROGRAM = """
import warnings; warnings.simplefilter("error")
import numpy as np, torch
from lockstep.runtime.portable_functions import replace_functions
values = np.linspace(0.001, 0.999, 5000, dtype=np.float32)
replace_functions()
replace_functions()
x = torch.from_numpy(values).requires_grad_()
for name, function in (("sqrt", np.sqrt), ("log10", np.log10), ("asin", np.arcsin), ("acos", np.arccos), ("atan", np.arctan)):
    expected = function(values)
    assert (getattr(x, name)().detach().numpy() == expected).all(), name
    assert (getattr(x.detach().clone(), name + "_")().numpy() == expected).all(), name
    assert (getattr(torch, name)(x.detach(), out=torch.empty(0)).numpy() == expected).all(), name
root = x.sqrt()
root.sum().backward()
assert torch.equal(x.grad, 0.5 / root.detach())
assert torch.tensor(4.0).sqrt() == 2 and torch.tensor(4.0).sqrt().shape == ()
assert torch.tensor([4]).sqrt().dtype == torch.float32 and torch.tensor([4.0], dtype=torch.bfloat16).sqrt().dtype == torch.bfloat16
assert torch.tensor([-1.0]).sqrt().isnan().all() and torch.empty(0, 3).sqrt().shape == (0, 3)
assert torch.tensor([4.0], dtype=torch.float64).sqrt().dtype == torch.float64
assert torch.equal(torch.ones(3, 4).t().mul(4).sqrt(), torch.full((4, 3), 2.0)) and torch.ones(2, device="meta").sqrt().is_meta
"""


@pytest.mark.slow
def test_functions_are_those_of_numpy() -> None:
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=plain_environ(), capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr

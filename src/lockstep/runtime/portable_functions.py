"""Replacements of PyTorch functions whose bits depend on the processor with every setting: MKL's vector functions.

They select their code by the processor, also with `processes.portable.portable_variables`, and even their square roots are not rounded
correctly. NumPy's depend on the variables only. Found by comparing all functions of a tensor on two processors; `pow` with an exponent
of 0.5 calls MKL too and is not replaced.
"""

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["replace_functions"]

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": np.sqrt,
    "log10": np.log10,
    "asin": np.arcsin,
    "acos": np.arccos,
    "atan": np.arctan,
}
"""NumPy's functions by the names of PyTorch's."""
_EXACT = torch.float32, torch.float64
"""Types that NumPy computes in."""


@cache
def replace_functions() -> torch.library.Library:
    """Replace the functions in this process, for tensors on the CPU. Compiled kernels do not call them."""
    library = torch.library.Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message="(?s).*Overriding a previously registered kernel", category=UserWarning
        )
        for name, function in _FUNCTIONS.items():
            compute = _on_tensors(function)
            library.impl(name, compute, "CPU")
            library.impl(f"{name}_", lambda x, compute=compute: x.copy_(compute(x)), "CPU")
            library.impl(f"{name}.out", lambda x, *, out, compute=compute: _fill(out, compute(x)), "CPU")
    return library


def _on_tensors(function: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    def compute(x: Tensor) -> Tensor:
        dtype = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        values = x.detach().to(dtype if dtype in _EXACT else torch.float32)
        with np.errstate(all="ignore"):
            return torch.from_numpy(np.asarray(function(values.numpy()))).to(dtype)

    return compute


def _fill(out: Tensor, result: Tensor) -> Tensor:
    return out.resize_(result.shape).copy_(result)

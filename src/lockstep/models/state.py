"""Check of named tensors that are loaded from a checkpoint."""

from collections.abc import Mapping

from torch import Tensor

__all__ = ["NonFiniteState", "check_finite", "check_state"]


class NonFiniteState(ValueError):
    """A tensor holds NaN or infinite values. The message names it."""


def check_state(expected: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Raise ValueError, naming the tensor, if one is missing, not `expected`, or has another shape or dtype."""
    for name in sorted(expected.keys() ^ state.keys()):
        raise ValueError(f"tensor {name!r} is {'missing' if name in expected else 'not expected'}")
    for name, tensor in expected.items():
        if tensor.shape != state[name].shape or tensor.dtype != state[name].dtype:
            raise ValueError(f"tensor {name!r} is {_describe(state[name])}, but must be {_describe(tensor)}")


def check_finite(state: Mapping[str, Tensor]) -> None:
    """Raise NonFiniteState, naming the tensor, if one has a value that is not finite."""
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            raise NonFiniteState(f"tensor {name!r} has values that are not finite")


def _describe(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"

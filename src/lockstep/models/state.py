"""Named tensors that are saved and loaded."""

from collections.abc import Mapping

from torch import Tensor

__all__ = ["check_state"]


def check_state(own: Mapping[str, Tensor], found: Mapping[str, Tensor]) -> None:
    """Raises ValueError, naming the tensor, if one of `own` is not in `found`, is left over, or has another shape or type."""
    for name in sorted(own.keys() ^ found.keys()):
        raise ValueError(f"tensor {name!r} is {'missing' if name in own else 'not expected'}")
    for name, tensor in own.items():
        if tensor.shape != found[name].shape or tensor.dtype != found[name].dtype:
            raise ValueError(f"tensor {name!r} is {_described(found[name])}, but must be {_described(tensor)}")


def _described(tensor: Tensor) -> str:
    return f"{list(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"

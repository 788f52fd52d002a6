"""Buffers of networks: select the saved ones, and average the ones that training changes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["TrainedBuffers", "persistent_buffers"]


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Return the buffers of a module by name, except those registered with `persistent=False`."""
    buffers = dict(module.named_buffers())
    return {name: buffers[name] for name in module.state_dict() if name in buffers} if buffers else {}


class TrainedBuffers:
    """Buffers that a forward pass in training mode changes, such as running statistics. Most networks have none.

    Every forward pass of a gradient step starts from the same values. There is one forward pass per microbatch of the
    minibatch. The gradient step replaces the buffers by the average of their values after these passes, added in the
    order of the microbatches. If there are such buffers, the networks are in evaluation mode except within `training`.
    """

    def __init__(self, networks: nn.Module, names: Sequence[str]) -> None:
        self._networks = networks
        paths = [name.rpartition(".") for name in names]
        self._owners = [(networks.get_submodule(path), leaf) for path, _, leaf in paths]
        self._buffers: list[Tensor] = [getattr(owner, leaf) for owner, leaf in self._owners]
        self._values_before: list[Tensor] = []
        self._average: Tensor | None = None
        if names:
            networks.eval()

    def __bool__(self) -> bool:
        """True if there are such buffers."""
        return bool(self._owners)

    @contextmanager
    def training(self) -> Iterator[None]:
        """Put the networks in training mode inside the context; restore the buffers and evaluation mode at its end."""
        if not self._owners:
            yield
            return
        self._values_before = [buffer.clone() for buffer in self._buffers]
        self._networks.train()
        try:
            yield
        finally:
            self._networks.eval()
            self.rewind()

    def append_to(self, row: Tensor) -> Tensor:
        """Append the F values of the buffers, and a constant 1, whose sum is the number of rows: `[N]` -> `[N + F + 1]`."""
        if not self._owners:
            return row
        values = [getattr(owner, leaf).detach().reshape(-1).to(row) for owner, leaf in self._owners]
        return torch.cat([row, *values, row.new_ones(1)])

    def rewind(self) -> None:
        """Reset the buffers to their values before the forward pass, after the backward pass, which may read them."""
        if not self._owners:
            return
        with torch.no_grad():
            for (owner, leaf), buffer, before in zip(self._owners, self._buffers, self._values_before, strict=True):
                buffer.copy_(before)
                setattr(owner, leaf, buffer)  # the forward pass may have assigned another tensor

    def split_off(self, total: Tensor) -> Tensor:
        """Return the sum of rows without the columns of `append_to`, whose average is kept until `accept`."""
        if not self._owners:
            return total
        end = len(total) - 1 - sum(buffer.numel() for buffer in self._buffers)
        self._average = total[end:-1] / total[-1]
        return total[:end]

    @property
    def is_nan(self) -> bool:
        """Flag that is True if `accept` would write NaN into a buffer."""
        return self._average is not None and bool(self._average.isnan().any())

    def discard(self) -> None:
        """Drop the average of the last gradient step."""
        self._average = None

    def accept(self) -> None:
        """Write the average of the last gradient step into the buffers."""
        if self._average is None:
            return
        chunks = self._average.split([buffer.numel() for buffer in self._buffers])
        with torch.no_grad():
            for buffer, chunk in zip(self._buffers, chunks, strict=True):
                buffer.copy_(chunk.view(buffer.shape))
        self._average = None

"""Buffers of networks: those that are saved, and those that training changes."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

__all__ = ["TrainedBuffers", "persistent_buffers"]


def persistent_buffers(module: nn.Module) -> dict[str, Tensor]:
    """Buffers by name, without those that were registered with `persistent=False`."""
    buffers = dict(module.named_buffers())
    return {name: buffers[name] for name in module.state_dict() if name in buffers} if buffers else {}


class TrainedBuffers:
    """The buffers that a forward pass in training mode changes, such as running statistics; usually there are none.

    Every forward pass of a gradient step starts from the same values. The step replaces them by the average of the values after
    these passes, one per part of the minibatch, added in the order of the parts. If there are such buffers, the networks are in
    evaluation mode except within `training`.
    """

    def __init__(self, networks: nn.Module, names: Sequence[str]) -> None:
        self._networks = networks
        paths = [name.rpartition(".") for name in names]
        self._places = [(networks.get_submodule(path), leaf) for path, _, leaf in paths]
        self._buffers: list[Tensor] = [getattr(owner, leaf) for owner, leaf in self._places]
        self._before: list[Tensor] = []
        self._average: Tensor | None = None
        if names:
            networks.eval()

    @contextmanager
    def training(self) -> Iterator[None]:
        """Put the networks in training mode; afterwards the buffers are what they were."""
        if not self._places:
            yield
            return
        self._before = [buffer.clone() for buffer in self._buffers]
        self._networks.train()
        try:
            yield
        finally:
            self._networks.eval()
            self.rewind()

    def append_to(self, row: Tensor) -> Tensor:
        """`[N]` -> `[N + F + 1]`: the row, the present values of all F elements, and a 1 that counts the rows of a sum."""
        if not self._places:
            return row
        values = [getattr(owner, leaf).detach().reshape(-1).to(row) for owner, leaf in self._places]
        return torch.cat([row, *values, row.new_ones(1)])

    @torch.no_grad()
    def rewind(self) -> None:
        """Give the buffers the values from before the forward pass; not before the backward pass, which may read them."""
        for (owner, leaf), buffer, before in zip(self._places, self._buffers, self._before, strict=True):
            buffer.copy_(before)
            setattr(owner, leaf, buffer)  # a module may have assigned another tensor

    def split_off(self, total: Tensor) -> Tensor:
        """The sum of rows without what `append_to` appended, which is kept until `accept`."""
        if not self._places:
            return total
        end = len(total) - 1 - sum(buffer.numel() for buffer in self._buffers)
        self._average = total[end:-1] / total[-1]
        return total[:end]

    @property
    def is_nan(self) -> bool:
        """True if a buffer would become NaN with `accept`."""
        return self._average is not None and bool(self._average.isnan().any())

    @torch.no_grad()
    def accept(self) -> None:
        """Take the average of the last gradient step."""
        if self._average is not None:
            pieces = self._average.split([buffer.numel() for buffer in self._buffers])
            for buffer, piece in zip(self._buffers, pieces, strict=True):
                buffer.copy_(piece.view(buffer.shape))
            self._average = None

"""All parameters of a module in one flat buffer.

One buffer means one gradient clip, one optimizer call, one reduction, one digest and one tensor to save, however many layers
there are. The module keeps its parameters; they become views of the buffer.
"""

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor, nn

__all__ = ["FlatParameters"]


class FlatParameters:
    """The buffer, and the slices of it that belong to each part."""

    def __init__(self, parts: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        """`parts` hold parameters by name; they are laid out one after the other, in order. A parameter may be in one part only."""
        self.parameters = {name: parameter for named in parts.values() for name, parameter in named.items()}
        """By name, in the buffer's order."""
        self.buffer: Tensor = torch.cat([parameter.detach().reshape(-1) for parameter in self.parameters.values()])
        """`[N]`: writing to it changes the module."""
        self._shapes = [parameter.shape for parameter in self.parameters.values()]
        for name, view in self.named(self.buffer).items():
            self.parameters[name].data = view
        ends = list(accumulate(sum(map(Tensor.numel, named.values())) for named in parts.values()))
        self.slices = {name: slice(start, end) for name, start, end in zip(parts, [0, *ends], ends, strict=False)}

    def named(self, buffer: Tensor) -> dict[str, Tensor]:
        """Views of any `[N]` as parameters, by name."""
        pieces = buffer.split([shape.numel() for shape in self._shapes])
        return {
            name: piece.view(shape) for name, piece, shape in zip(self.parameters, pieces, self._shapes, strict=True)
        }

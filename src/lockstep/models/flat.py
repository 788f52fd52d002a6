"""All parameters of a module in one flat buffer.

One buffer means one gradient clip, one optimizer call, one reduction, one digest and one tensor to save, however many layers
there are. The module keeps its parameters; they become views of the buffer.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

__all__ = ["FlatParameters"]


class FlatParameters:
    """The buffer, and the slices of it that belong to each part."""

    def __init__(self, parts: Mapping[str, Sequence[nn.Parameter]]) -> None:
        """`parts` are laid out one after the other, in order; a parameter may be in one part only."""
        self.parameters = {name: list(parameters) for name, parameters in parts.items()}
        everything = [parameter for parameters in self.parameters.values() for parameter in parameters]
        self.buffer: Tensor = torch.cat([parameter.detach().reshape(-1) for parameter in everything])
        """`[N]`: writing to it changes the module."""
        self.slices: dict[str, slice] = {}
        start = 0
        for name, parameters in self.parameters.items():
            first = start
            for parameter in parameters:
                end = start + parameter.numel()
                parameter.data = self.buffer[start:end].view_as(parameter)
                start = end
            self.slices[name] = slice(first, start)

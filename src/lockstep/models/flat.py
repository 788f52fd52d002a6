"""All parameters of a module in one flat buffer.

With one buffer there is one gradient clip, one optimizer call, one reduction, one digest and one tensor to save,
whatever the number of layers. The module keeps its parameters; they become views of the buffer.
"""

from collections.abc import Mapping
from itertools import accumulate

import torch
from torch import Tensor, nn

__all__ = ["FlatParameters"]


class FlatParameters:
    """Flat buffer of all parameters, with the slice of each parameter group (policy, value, …)."""

    def __init__(self, groups: Mapping[str, Mapping[str, nn.Parameter]]) -> None:
        """Move the parameters of all groups, by name, into one flat buffer. A parameter may be in one group only."""
        self.parameters = {name: parameter for named in groups.values() for name, parameter in named.items()}
        """Parameters by name, in the order of the buffer."""
        self._shapes = [parameter.shape for parameter in self.parameters.values()]
        size, first = sum(map(Tensor.numel, self.parameters.values())), next(iter(self.parameters.values()))
        # not by torch.cat, which imports TorchDynamo on the device meta: 1.3 s at each start
        self.buffer: Tensor = torch.empty(size, dtype=first.dtype, device=first.device)
        """Flat parameters `[N]`. Writing to this tensor changes the module."""
        for name, view in self.named(self.buffer).items():
            self.parameters[name].data = view.copy_(self.parameters[name].detach())
        ends = list(accumulate(sum(map(Tensor.numel, named.values())) for named in groups.values()))
        self.slices = {name: slice(start, end) for name, start, end in zip(groups, [0, *ends], ends, strict=False)}

    def named(self, buffer: Tensor) -> dict[str, Tensor]:
        """Return views of `buffer`, any tensor `[N]`, in the shapes of the parameters, by name."""
        pieces = buffer.split([shape.numel() for shape in self._shapes])
        return {
            name: piece.view(shape) for name, piece, shape in zip(self.parameters, pieces, self._shapes, strict=True)
        }

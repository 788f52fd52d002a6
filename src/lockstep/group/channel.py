"""One way, from one rank to one other: a fixed set of tensors, again and again."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from lockstep.group.memory import LINE

__all__ = ["PATIENCE", "Channel", "LocalChannel", "Spec", "footprint", "laid_out"]

PATIENCE = 10
"""How many times the group's timeout one rank waits for another that may be busy: with a whole rollout or update, or compiling."""

Spec = tuple[tuple[int, ...], torch.dtype]
"""Shape and type of one tensor of a message."""


class Channel(ABC):
    """Carries message `number` = 0, 1, 2, … in slot `number % depth`.

    Numbers only rise, but need not begin at 0 nor be contiguous. Nothing is acknowledged: whoever uses a channel sees to it
    that a slot is not written again before the target is done with it.
    """

    _slots: Sequence[tuple[Tensor, ...]]

    def slot(self, number: int) -> tuple[Tensor, ...]:
        """This rank's tensors of that message: the source writes them, the target reads them after `receive`.

        Always the same for one slot, zeroed at first, contiguous, on the CPU, each at a multiple of 64 bytes.
        """
        return self._slots[number % len(self._slots)]

    @abstractmethod
    def send(self, number: int) -> None:
        """From now on the target may read what is in the slot. Only the source calls it."""

    @abstractmethod
    def receive(self, number: int) -> None:
        """Waits until the message is in the slot. Only the target calls it. Raises RankLost when it does not come in time."""

    @abstractmethod
    def close(self) -> None:
        """Sends what is still on its way. The group that made the channel does it at its own end."""


class LocalChannel(Channel):
    """From a rank to itself: what is written is there."""

    def __init__(self, specs: Sequence[Spec], depth: int) -> None:
        self._slots = laid_out(torch.zeros(depth * footprint(specs), dtype=torch.uint8), specs, depth)
        self._sent = -1

    def send(self, number: int) -> None:
        """See `Channel.send`."""
        self._sent = number

    def receive(self, number: int) -> None:
        """See `Channel.receive`; nobody else could send it meanwhile."""
        assert number <= self._sent, f"message {number} was never sent"

    def close(self) -> None:
        """See `Channel.close`."""


def footprint(specs: Sequence[Spec]) -> int:
    """Bytes of one slot."""
    return sum(_bytes(spec) for spec in specs)


def laid_out(memory: Tensor, specs: Sequence[Spec], depth: int) -> list[tuple[Tensor, ...]]:
    """`depth` slots, one after the other in `memory`: `[depth × footprint(specs)]` bytes, itself at a multiple of 64 bytes."""
    slots, start = [], 0
    for _ in range(depth):
        tensors = []
        for shape, dtype in specs:
            tensors.append(memory[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape))
            start += _bytes((shape, dtype))
        slots.append(tuple(tensors))
    return slots


def _bytes(spec: Spec) -> int:
    shape, dtype = spec
    return -(-prod(shape) * dtype.itemsize // LINE) * LINE

"""Channels: one rank repeatedly sends a fixed set of tensors to one other rank."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from lockstep.group.memory import CACHE_LINE

__all__ = ["TIMEOUT_FACTOR", "Channel", "LocalChannel", "Spec", "make_slots", "slot_bytes"]

TIMEOUT_FACTOR = 10
"""Factor on the group's timeout for waits on a rank that may be busy with a whole rollout or update, or with building the interpreter of kernels."""

Spec = tuple[tuple[int, ...], torch.dtype]
"""Shape and dtype of one tensor of a message."""


class Channel(ABC):
    """One-way connection. Message `number` = 0, 1, 2, … uses slot `number % depth`.

    Numbers increase, but need not start at 0 nor be contiguous. Messages are not acknowledged: the users of a channel
    must make sure that the target has finished reading a slot before the source writes it again.
    """

    _slots: Sequence[tuple[Tensor, ...]]

    def slot(self, number: int) -> tuple[Tensor, ...]:
        """Return this rank's tensors of the message: the source writes them, the target reads them after `receive`.

        A slot always has the same tensors. They are initialized to zero, contiguous, on the CPU, and each is aligned to 64 bytes.
        """
        return self._slots[number % len(self._slots)]

    @abstractmethod
    def send(self, number: int) -> None:
        """Make the slot's content available to the target. Only the source calls it."""

    @abstractmethod
    def receive(self, number: int) -> None:
        """Wait until the message is in the slot. Only the target calls it.

        Raises RankLost if the message does not arrive in time.
        """

    @abstractmethod
    def close(self) -> None:
        """Finish sending pending messages. The group that created the channel calls it when the group is closed."""


class LocalChannel(Channel):
    """Channel from a rank to itself: source and target use the same tensors."""

    def __init__(self, specs: Sequence[Spec], depth: int) -> None:
        self._slots = make_slots(torch.zeros(depth * slot_bytes(specs), dtype=torch.uint8), specs, depth)
        self._sent = -1

    def send(self, number: int) -> None:
        """See `Channel.send`."""
        self._sent = number

    def receive(self, number: int) -> None:
        """See `Channel.receive`. It never waits: only this rank could send the message."""
        assert number <= self._sent, f"message {number} was never sent"

    def close(self) -> None:
        """See `Channel.close`."""


def slot_bytes(specs: Sequence[Spec]) -> int:
    """Return the size of one slot in bytes, with every tensor padded to whole cache lines."""
    return sum(_padded_bytes(spec) for spec in specs)


def make_slots(memory: Tensor, specs: Sequence[Spec], depth: int) -> list[tuple[Tensor, ...]]:
    """Create the tensors of `depth` slots as views of `memory`, `[depth × slot_bytes(specs)]` uint8, aligned to 64 bytes."""
    slots, start = [], 0
    for _ in range(depth):
        tensors = []
        for shape, dtype in specs:
            tensors.append(memory[start : start + prod(shape) * dtype.itemsize].view(dtype).view(shape))
            start += _padded_bytes((shape, dtype))
        slots.append(tuple(tensors))
    return slots


def _padded_bytes(spec: Spec) -> int:
    shape, dtype = spec
    return -(-prod(shape) * dtype.itemsize // CACHE_LINE) * CACHE_LINE

"""The gradient of one step, of which a part is added over all ranks while the rest is computed."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Microbatch
from lockstep.algorithm.gradient import OrderedGradient
from lockstep.algorithm.loss import TrainMask
from lockstep.compiling.kernels import InterpretedKernel, MakeKernel
from lockstep.group.group import Group
from lockstep.ppo.settings import PPOConfig
from lockstep.processes.heartbeat import keep_alive

__all__ = ["OverlappedGradient", "make_ordered_gradient"]

_LEAST_ROWS = 128
"""Minimum number of rows at which the gradient of convolutions takes longer than a second reduction and the copies for it (`benchmarks/overlap.md`)."""


def make_ordered_gradient(
    agent: Agent, config: PPOConfig, group: Group, make_kernel: MakeKernel, rows: int
) -> OrderedGradient:
    """Return an OverlappedGradient if that saves time for `rows` rows of each shard, else an OrderedGradient; the same on all ranks."""
    late = _in_convolutions(agent)
    early = sum(p.nbytes for p, is_late in zip(agent.flat.parameters.values(), late, strict=True) if not is_late)
    has_kernel = make_kernel is InterpretedKernel and agent.supports_kernels and not agent.trained_buffers
    is_overlapped = has_kernel and any(late) and rows >= _LEAST_ROWS and group.adds_in_background(early)
    return (OverlappedGradient if is_overlapped else OrderedGradient)(agent, config, group, make_kernel)


def _in_convolutions(agent: Agent) -> list[bool]:
    """Return for each parameter whether it belongs to a convolution. A backward pass computes their gradients last, in about half of its time."""
    parameters = agent.flat.parameters
    layers = {name.rpartition(".")[0] for name, parameter in parameters.items() if parameter.dim() == 4}
    return [name.rpartition(".")[0] in layers for name in parameters]


def _ignore(early: Tensor) -> None:
    """Do nothing."""


def _added(totals: Sequence[Tensor], parts: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return `totals`, if there are any, plus `parts`."""
    return [total + part for total, part in zip(totals, parts, strict=True)] if totals else parts


def _stacked(rows: Sequence[Tensor]) -> Tensor:
    """Return a matrix of the rows, which shares the memory of a single one."""
    return rows[0].unsqueeze(0) if len(rows) == 1 else torch.stack(list(rows))


class OverlappedGradient(OrderedGradient):
    """Gradients of networks with convolutions. The gradients of the other layers, which are complete first and have most of the numbers,
    are added over the ranks while the kernel computes those of the convolutions. Sums and bits are those of OrderedGradient.
    """

    def __init__(self, agent: Agent, config: PPOConfig, group: Group, make_kernel: MakeKernel) -> None:
        super().__init__(agent, config, group, make_kernel)
        self._late = _in_convolutions(agent)
        self._sizes = [parameter.numel() for parameter in agent.flat.parameters.values()]

    def __call__(self, minibatch: Sequence[Microbatch], scalars: Tensor, trained: TrainMask) -> Tensor:
        """See `OrderedGradient.__call__`."""
        *others, last = minibatch
        rows = [[part.clone() for part in self._sum_parts(microbatch, scalars, trained)] for microbatch in others]
        pending = []

        def add_early(part: Tensor) -> None:
            pending.append(self._group.begin_reduce(_stacked([*(early for early, _ in rows), part]), "gradients"))

        _, last_late = self._sum_parts(last, scalars, trained, add_early)
        early = pending[0].result()
        late = self._group.reduce(_stacked([*(late for _, late in rows), last_late]), "gradients")
        return self._join(early, late)

    def _sum_parts(
        self, microbatch: Microbatch, scalars: Tensor, trained: TrainMask, then: Callable[[Tensor], None] = _ignore
    ) -> Sequence[Tensor]:
        """Return both parts of the sums over the rows of a microbatch, which the next call may overwrite.

        `then` is called with the first one before the other is complete.
        """
        keep_alive()
        *blocks, last = self._blocks(microbatch)
        totals: Sequence[Tensor] = ()
        for block in blocks:
            totals = _added(totals, [part.clone() for part in self._call(block, scalars, trained)])
        early: list[Tensor] = []

        def add_early(part: Tensor) -> None:
            early.extend(_added(totals[:1], [part]))
            then(early[0])

        _, late = self._call(last, scalars, trained, add_early)
        return *early, *_added(totals[1:], [late])

    def _call(
        self, block: Microbatch, scalars: Tensor, trained: TrainMask, then: Callable[[Tensor], None] = _ignore
    ) -> Sequence[Tensor]:
        kernel = self._kernel(trained, block)
        assert isinstance(kernel, InterpretedKernel)
        inputs = (field for field in block if field is not None)
        return kernel.call_in_two((self._agent.flat.buffer, scalars, *inputs), then)

    def _join(self, early: Tensor, late: Tensor) -> Tensor:
        """Return the columns of both parts in the order of the parameters; the statistics, which are early, come last."""
        parts, position = (early, late), [0, 0]
        columns = []
        for size, is_late in zip(self._sizes, self._late, strict=True):
            columns.append(parts[is_late][position[is_late] : position[is_late] + size])
            position[is_late] += size
        return torch.cat([*columns, early[position[0] :]])

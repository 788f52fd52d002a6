"""Running one gradient step operation by operation, to find the first non-finite value."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Microbatch, RowLayout
from lockstep.algorithm.loss import LOSS_SCALARS, Loss, TrainMask, microbatch_loss
from lockstep.ppo.settings import PPOConfig
from lockstep.ppo.statistics import STATISTICS

__all__ = ["Finding", "Origin", "trace_microbatch", "trace_total"]

_STATISTIC_SCALARS = 2
"""Leading LOSS_SCALARS, which are statistics of the samples. Others may be infinite: `ppo.clip`, for no clipping."""


class Origin(IntEnum):
    """Kinds of numbers, each of which can make the later ones non-finite."""

    PARAMETER = 0
    COLUMN = 1
    SCALAR = 2
    OPERATION = 3
    TOTAL = 4


@dataclass(frozen=True)
class Finding:
    """The first number of a gradient step that is not finite."""

    origin: Origin
    text: str
    """The number, as a clause: `column 2 of the observations is nan`."""
    row: int | None = None
    """Row of the microbatch, where the number belongs to one."""


def trace_microbatch(
    agent: Agent, config: PPOConfig, microbatch: Microbatch, scalars: Tensor, trained: TrainMask
) -> Finding | None:
    """Compute the gradient of a microbatch with the agent's weights. Return the first non-finite value; None if all are.

    Arguments as in `OrderedGradient`. Inputs come first: parameters, the columns of the rows, and the statistics of the advantages.
    """
    finding = _find_in_parameters(agent) or _find_in_columns(agent.layout, microbatch.rows) or _find_in_scalars(scalars)
    return finding or _find_in_operations(agent, config, microbatch, scalars, trained)


def trace_total(agent: Agent, total: Tensor) -> Finding | None:
    """Describe the first non-finite value in the sums `[P + 5 + n]` over all microbatches, or in the norm of the gradient, if all microbatches are finite."""
    size = len(agent.flat.buffer)
    for name, gradient in agent.flat.named(total[:size]).items():
        wrong = (~gradient.isfinite()).nonzero()
        if len(wrong):
            value = float(gradient[tuple(wrong[0])])
            return Finding(Origin.TOTAL, f"the gradient of {name}, summed over all shards, is {value}")
    curiosity = () if agent.curiosity is None else agent.curiosity.losses
    for name, value in zip((*STATISTICS, *curiosity), total[size:].tolist(), strict=True):
        if not math.isfinite(value):
            return Finding(Origin.TOTAL, f"{name}, summed over all shards, is {value}")
    if total[:size].square().sum().isfinite():
        return None
    name, largest = max(
        ((name, float(part.abs().max())) for name, part in agent.flat.named(total[:size]).items() if part.numel()),
        key=lambda named: named[1],
    )
    return Finding(
        Origin.TOTAL, f"the norm of the gradient overflows: the largest entry is {largest:g}, in that of {name}"
    )


def _find_in_parameters(agent: Agent) -> Finding | None:
    for name, parameter in agent.networks.named_parameters():
        wrong = (~parameter.detach().isfinite()).nonzero()
        if len(wrong):
            index = tuple(wrong[0].tolist())
            return Finding(
                Origin.PARAMETER, f"the parameter {name} is {float(parameter.detach()[index])} at {list(index)}"
            )
    return None


def _find_in_columns(layout: RowLayout, rows: Tensor) -> Finding | None:
    wrong = (~rows.isfinite()).nonzero()
    if not len(wrong):
        return None
    row, column = wrong[0].tolist()
    text = f"{layout.column_name(column)} is {float(rows[row, column])}"
    return Finding(Origin.COLUMN, text, row)


def _find_in_scalars(scalars: Tensor) -> Finding | None:
    for name, value in zip(LOSS_SCALARS[:_STATISTIC_SCALARS], scalars.tolist(), strict=False):
        if not math.isfinite(value):
            return Finding(Origin.SCALAR, f"the {name} of the advantages of the minibatch is {value}")
    return None


def _find_in_operations(
    agent: Agent, config: PPOConfig, microbatch: Microbatch, scalars: Tensor, trained: TrainMask
) -> Finding | None:
    watcher, parameters = _Watcher(len(microbatch.rows), microbatch.states), agent.flat.parameters
    buffers = agent.trained_buffers
    with buffers.training(), _layers(agent.networks, watcher), watcher, torch.enable_grad():
        result = microbatch_loss(Loss(agent, config, trained), agent.networks, microbatch, scalars)
        watcher.layer = "the backward pass"
        gradients = torch.autograd.grad(
            result.loss, list(parameters.values()), allow_unused=True, materialize_grads=True
        )
    if watcher.finding is None:  # on a GPU, the backward pass runs in a thread that is not watched
        for name, gradient in zip(parameters, gradients, strict=True):
            if not gradient.isfinite().all():
                return Finding(Origin.OPERATION, f"the gradient of {name} is not finite")
    return watcher.finding


@contextmanager
def _layers(networks: nn.Module, watcher: "_Watcher") -> Iterator[None]:
    """Tell the watcher which module computes, by the names that checkpoints use."""

    def enter(name: str, module: nn.Module, inputs: Any) -> None:
        watcher.entered.append(watcher.layer)
        watcher.layer = name

    def leave(module: nn.Module, inputs: Any, output: Any) -> None:
        watcher.layer = watcher.entered.pop()

    with ExitStack() as handles:
        for name, module in networks.named_modules():
            if name:
                handles.callback(module.register_forward_pre_hook(partial(enter, name)).remove)
                handles.callback(module.register_forward_hook(leave).remove)
        yield


class _Watcher(TorchDispatchMode):
    """Records the first operation of PyTorch whose inputs are finite and whose output is not.

    Infinite values of the config, such as no limit of the ratio, are ignored in this way.
    """

    def __init__(self, rows: int, states: Tensor | None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.finding: Finding | None = None
        self.layer = "the loss"
        self.entered: list[str] = []
        self._rows = rows
        self._sequences = None if states is None else len(states)
        self._count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(func).removesuffix(".default")
        # memory that is not filled yet holds anything
        largest = None if self.finding is not None or "empty" in name else _largest((args, kwargs))
        results = func(*args, **kwargs)
        self._count += 1
        if largest is not None and math.isfinite(largest):
            for result in _floats(results):
                self._examine(name, result, largest)
        return results

    def _examine(self, name: str, result: Tensor, largest: float) -> None:
        wrong = (~result.isfinite()).nonzero()
        if not len(wrong) or self.finding is not None:
            return
        index = wrong[0].tolist()
        value = float(result.detach()[tuple(index)])
        text = f"the result of {name} in {self.layer} (operation {self._count}) is {value}, from inputs of at most {largest:g}"
        self.finding = Finding(Origin.OPERATION, text, self._row(result.shape, index))

    def _row(self, shape: torch.Size, index: list[int]) -> int | None:
        """Return the row of the microbatch to which a result belongs: its first dimension, or the first two with memory."""
        if shape and shape[0] == self._rows:
            return index[0]
        count = self._sequences
        if count and len(shape) > 1 and shape[1] == count and shape[0] * count == self._rows:
            return index[0] * count + index[1]
        return None


def _floats(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _largest(tree: Any) -> float:
    """Return the largest magnitude in the tensors of a tree: NaN if one has a NaN, 0 without numbers."""
    values = [tensor.detach().abs().max() for tensor in _floats(tree) if tensor.numel()]
    return float(torch.stack([value.to("cpu", torch.float64) for value in values]).max()) if values else 0.0

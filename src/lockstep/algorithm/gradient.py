"""The gradient of one step: sums over the rows of every microbatch of a minibatch, added over all ranks."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.batch import Microbatch
from lockstep.algorithm.loss import LOSS_SCALARS, Loss, TrainMask, microbatch_loss, predictor_stride
from lockstep.compiling.kernels import Kernel, MakeKernel, eager, rows_per_call
from lockstep.group.group import Group
from lockstep.ppo.settings import PPOConfig
from lockstep.processes.heartbeat import keep_alive

__all__ = ["GradientFormula", "OrderedGradient", "Replicate", "ReplicatedGradient"]

Replicate = Callable[[nn.Module], nn.Module]
"""Wraps a module in PyTorch's DistributedDataParallel over the ranks that train, so that the backward pass averages gradients over
them. A rank that trains alone may get the module unchanged."""


@dataclass(frozen=True)
class GradientFormula:
    """A function of weights `[N]`, LOSS_SCALARS `[5]` and the fields of a microbatch that `fields` names, which returns sums `[N + 5 + n]` over the
    rows: the gradient, STATISTICS and the losses of curiosity.
    """

    loss: Loss
    fields: Sequence[str] = ("rows",)
    late: Sequence[bool] = ()
    """Flag of each parameter whose gradient is returned in a second tensor; empty: all columns are in one tensor."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Evaluate the function."""
        weights, scalars, *inputs = tensors
        agent = self.loss.agent
        parameters = {name: part.detach().requires_grad_() for name, part in agent.flat.named(weights).items()}
        networks = partial(functional_call, agent.networks, parameters)
        microbatch = Microbatch(**dict(zip(self.fields, inputs, strict=True)))
        return self._differentiate(lambda *args: networks(args), list(parameters.values()), microbatch, scalars)

    def eager(self, microbatch: Microbatch, scalars: Tensor) -> Tensor:
        """Evaluate the function for any microbatch, at the agent's own weights."""
        agent = self.loss.agent
        return self._differentiate(agent.networks, list(agent.flat.parameters.values()), microbatch, scalars)[0]

    def _differentiate(
        self, networks: Callable[..., Any], parameters: Sequence[Tensor], microbatch: Microbatch, scalars: Tensor
    ) -> tuple[Tensor, ...]:
        with torch.enable_grad():
            result = microbatch_loss(self.loss, networks, microbatch, scalars)
            gradients = torch.autograd.grad(result.loss, parameters, allow_unused=True, materialize_grads=True)
        columns = [gradient.reshape(-1) for gradient in gradients]
        if not self.late:
            return (torch.cat([*columns, result.statistics]),)
        early, late = (
            [part for part, is_late in zip(columns, self.late, strict=True) if is_late == which]
            for which in (False, True)
        )
        return torch.cat([*early, result.statistics]), torch.cat(late)


class OrderedGradient:
    """Gradients computed microbatch by microbatch and added in the order of the microbatches: the same bits whichever ranks compute them."""

    def __init__(self, agent: Agent, config: PPOConfig, group: Group, make_kernel: MakeKernel = eager) -> None:
        self._agent = agent
        self._config = config
        self._group = group
        self._make_kernel = make_kernel
        self._late: Sequence[bool] = ()
        """See `GradientFormula.late`."""
        self._has_kernels = agent.supports_kernels and make_kernel is not eager
        self._block_sizes: dict[torch.Size, int] = {}
        """Number of rows per block, by the shape of the rows of a microbatch. Kept because computing it takes 5% of the time of a small gradient."""
        self._kernels: dict[tuple[torch.Size, TrainMask], tuple[Kernel, list[tuple[torch.Size, torch.dtype]]]] = {}
        """Kernels, and shapes and dtypes of the fields of a microbatch that they take."""

    def __call__(self, minibatch: Sequence[Microbatch], scalars: Tensor, trained: TrainMask) -> Tensor:
        """Return `[P + 5 + n]`: gradient, STATISTICS and the losses of curiosity, summed over the samples of all ranks.

        `minibatch` has this rank's microbatches, and `scalars` is LOSS_SCALARS, `[5]`.
        """
        buffers, sums = self._agent.trained_buffers, []
        with buffers.training():
            for microbatch in minibatch:
                keep_alive()
                microbatch_sum = self._microbatch_sum(microbatch, scalars, trained)
                sums.append(buffers.append_to(microbatch_sum if len(minibatch) == 1 else microbatch_sum.clone()))
                buffers.rewind()
        total = self._group.reduce(sums[0].unsqueeze(0) if len(sums) == 1 else torch.stack(sums), "gradients")
        return buffers.split_off(total)

    def _microbatch_sum(self, microbatch: Microbatch, scalars: Tensor, trained: TrainMask) -> Tensor:
        """Return the sums over the rows of a microbatch, which the next call may overwrite."""
        if not self._has_kernels:
            return GradientFormula(Loss(self._agent, self._config, trained)).eager(microbatch, scalars)
        first, *others = self._blocks(microbatch)
        total = self._block_sum(first, scalars, trained)
        if others:
            total = total.clone()
        for block in others:
            total += self._block_sum(block, scalars, trained)
        return total

    def _block_sum(self, block: Microbatch, scalars: Tensor, trained: TrainMask) -> Tensor:
        inputs = (field for field in block if field is not None)
        return self._kernel(trained, block)(self._agent.flat.buffer, scalars, *inputs)[0]

    def _blocks(self, microbatch: Microbatch) -> Sequence[Microbatch]:
        """Split a microbatch's rows into blocks of one size, or two, at multiples of the predictor's stride, so that it is trained on the same rows.

        A GPU computes all rows at once, and sequences are not split.
        """
        count, shape = len(microbatch.rows), microbatch.rows.shape
        if shape not in self._block_sizes:
            self._block_sizes[shape] = self._block_size(microbatch)
        size = self._block_sizes[shape]
        if size >= count:
            return [microbatch]
        blocks = [[None] * count if field is None else field.split(size) for field in microbatch]
        return [Microbatch(*fields) for fields in zip(*blocks, strict=False)]

    def _block_size(self, microbatch: Microbatch) -> int:
        rows, fields = len(microbatch.rows), [field for field in microbatch if field is not None]
        if not self._has_kernels or microbatch.rows.is_cuda or microbatch.states is not None:
            return rows
        count, stride = math.ceil(rows / rows_per_call(*fields)), predictor_stride(self._agent)
        return math.ceil(rows / max(1, count) / stride) * stride

    def make_kernels(self, microbatch: Microbatch, trained: TrainMask) -> None:
        """Make the kernels for microbatches with the shapes of `microbatch`."""
        for block in self._blocks(microbatch):
            self._kernel(trained, block)

    def _kernel(self, trained: TrainMask, microbatch: Microbatch) -> Kernel:
        key = microbatch.rows.shape, trained
        if key not in self._kernels:
            agent = self._agent
            fields = {name: field for name, field in microbatch._asdict().items() if field is not None}
            formula = GradientFormula(Loss(agent, self._config, trained, unroll=True), tuple(fields), self._late)
            examples = (agent.flat.buffer, agent.flat.buffer.new_zeros(len(LOSS_SCALARS)), *fields.values())
            types = [(field.shape, field.dtype) for field in fields.values()]
            self._kernels[key] = self._make_kernel(formula, examples), types
        return self._kernels[key][0]

    def kernel_results(self) -> Iterator[Tensor]:
        """Yield what every kernel computes from the present weights and fixed numbers, to compare the kernels of ranks."""
        weights = self._agent.flat.buffer
        for kernel, types in self._kernels.values():
            inputs = []
            for shape, dtype in types:
                numbers = torch.arange(shape.numel(), device=weights.device) * 7919 % 1013
                inputs.append((numbers / (1013 if dtype.is_floating_point else 4)).to(dtype).view(shape))
            yield from kernel(weights, weights.new_full((len(LOSS_SCALARS),), 0.5), *inputs)


class ReplicatedGradient:
    """Gradients averaged by PyTorch's DistributedDataParallel, in buckets, while the backward pass runs.

    All ranks get the same bits, equal to those of `OrderedGradient` up to rounding: the order of the sums depends on the ranks.
    """

    def __init__(self, agent: Agent, config: PPOConfig, group: Group, replicate: Replicate) -> None:
        self._agent = agent
        self._config = config
        self._group = group
        self._module = replicate(agent.networks)

    def __call__(self, minibatch: Sequence[Microbatch], scalars: Tensor, trained: TrainMask) -> Tensor:
        """See `OrderedGradient.__call__`."""
        self._agent.networks.zero_grad()
        buffers, sums, no_sync = self._agent.trained_buffers, [], getattr(self._module, "no_sync", nullcontext)
        with buffers.training():
            for microbatch in minibatch[:-1]:
                # gradients accumulate here, and are averaged in the backward pass of the last microbatch
                with no_sync():
                    loss, statistics = self._loss(microbatch, scalars, trained)
                    loss.backward()
                sums.append(buffers.append_to(statistics))
                buffers.rewind()
            loss, statistics = self._loss(minibatch[-1], scalars, trained)
            sums.append(buffers.append_to(statistics))
            # before the backward pass, so that the time spent waiting for late ranks is measured as waiting
            total = buffers.split_off(self._group.reduce(torch.stack(sums), "statistics"))
            loss.backward()
        gradients = []
        for parameter in self._agent.flat.parameters.values():
            assert parameter.grad is not None
            gradients.append(parameter.grad.reshape(-1))
        return torch.cat([*gradients, total])

    def _loss(self, microbatch: Microbatch, scalars: Tensor, trained: TrainMask) -> tuple[Tensor, Tensor]:
        # calls forward of the wrapper only: hooks there make the backward pass reduce
        loss = Loss(self._agent, self._config, trained)
        result = microbatch_loss(loss, self._module, microbatch, scalars)
        # DistributedDataParallel waits for the gradients of all parameters: outputs that are not trained get zero gradients
        untrained = [0 * output.sum() for output, train in zip(result.outputs, trained, strict=True) if not train]
        return (result.loss + sum(untrained)) * self._group.size, result.statistics  # the average becomes a sum

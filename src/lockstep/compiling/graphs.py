"""CUDA graphs: the GPU kernels of a formula, recorded once and launched together.

One gradient step of a small network takes about 170 kernels of 1 to 5 microseconds each. Python and PyTorch need far longer to launch them
one by one. A graph launches the same kernels on the same addresses, so its results are bit-identical to those of the recorded kernels.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from lockstep.compiling.kernels import Formula, Kernel

__all__ = ["cuda_graph"]

_WARM_UP = 2
"""Evaluations before recording, in which libraries are loaded and choose their kernels: this is not allowed while recording."""


def cuda_graph(formula: Formula, examples: Sequence[Tensor]) -> Kernel:
    """Record a formula for arguments with the shapes and dtypes of `examples`, of which at least one is on a GPU.

    The kernel copies its arguments, which may be on the CPU, to fixed addresses on that GPU, and returns new tensors. The formula may not wait for the GPU,
    and what it reads besides its arguments must stay at the same address.
    """
    device = next(example.device for example in examples if example.is_cuda)
    with torch.cuda.device(device):
        inputs = [
            torch.empty_like(example, device=device, memory_format=torch.contiguous_format) for example in examples
        ]
        _copy(inputs, examples)
        replay, outputs = _record(lambda: formula(*inputs))

    def kernel(*tensors: Tensor) -> Sequence[Tensor]:
        _copy(inputs, tensors)
        replay()
        return tuple(output.clone() for output in outputs)  # the next replay overwrites them

    return kernel


def _copy(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    for target, source in zip(targets, sources, strict=True):
        target.copy_(source)


def _record(function: Callable[[], Sequence[Tensor]]) -> tuple[Callable[[], None], Sequence[Tensor]]:
    """Record `function` on the current GPU. Return a function that runs it again, and its results, which are overwritten each time."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP):
            function()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # thread_local: other threads, such as those of NCCL, may use the GPU meanwhile
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = function()
    return graph.replay, outputs

"""Simulated GPUs for PyTorch, implemented in stand_in.cpp. Python imports this module at the start if its folder is in PYTHONPATH."""

import ctypes
import os
from contextlib import nullcontext
from types import SimpleNamespace

LIBRARY = ctypes.CDLL(os.environ["LOCKSTEP_TEST_GPU"])

import torch  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils._pytree import tree_leaves  # noqa: E402

from lockstep.compiling import graphs  # noqa: E402
from lockstep.runtime import checks  # noqa: E402

PROPERTIES = {"name": "stand-in", "total_memory": 1 << 30, "major": 9, "minor": 0}
# Inductor reads these fields even when it compiles for the CPU.
PROPERTIES |= {"gcnArchName": "", "multi_processor_count": 1, "warp_size": 32}
checks._SIGNS_OF_GPUS = (os.environ["LOCKSTEP_TEST_GPU"],)
torch._C._cuda_getDevice = torch.cuda.current_device = lambda: LIBRARY.current_gpu()
torch.cuda.device = lambda device: nullcontext(LIBRARY.choose_gpu(torch.device(device).index or 0))
torch.cuda.set_device = lambda device: LIBRARY.choose_gpu(torch.device(device).index or 0)
torch.cuda.get_device_properties = lambda device=None: SimpleNamespace(
    **PROPERTIES, uuid=f"stand-in {torch.device(device).index if device is not None else LIBRARY.current_gpu()}"
)
for name, found in {
    "_lazy_init": None,
    "device_count": 2,
    "get_rng_state": torch.empty(0, dtype=torch.uint8),
    "is_available": True,
    "is_bf16_supported": True,
    "is_initialized": True,
    "set_rng_state": None,
    "synchronize": None,
}.items():
    setattr(torch.cuda, name, lambda *_, found=found, **__: found)


class Recording(TorchDispatchMode):
    """Refuses what PyTorch refuses while a CUDA graph is recorded: to copy from or to the CPU, and to wait for results."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        name = str(operation.overloadpacket)
        tensors = [tensor for tensor in tree_leaves((args, kwargs, result)) if isinstance(tensor, torch.Tensor)]
        if name.startswith(("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.is_nonzero")):
            raise RuntimeError(f"{name} waits for the GPU while a graph is recorded")
        if "copy" in name and len({tensor.device.type for tensor in tensors}) > 1:
            raise RuntimeError(f"{name} between CPU and GPU while a graph is recorded")
        return result


def record(function):
    """Stand for `lockstep.compiling.graphs._record`: run the function again instead of replaying it."""
    function()
    with Recording():
        outputs = function()

    def replay():
        for output, repeated in zip(outputs, function(), strict=True):
            output.copy_(repeated)

    return replay, outputs


graphs._record = record

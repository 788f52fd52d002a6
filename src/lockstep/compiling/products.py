"""Matrix products of compiled formulas in float32: `product.cpp`, with the same bits on every x86-64 processor with AVX2 and FMA.

Its library is built once and kept in the cache. It is loaded with RTLD_GLOBAL, so that compiled formulas find its function by name.
"""

import ctypes
import hashlib
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lockstep.compiling.build import build_missing
from lockstep.compiling.cache import find_defect
from lockstep.compiling.compiler import find_compiler
from lockstep.compiling.interfaces import private_interface
from lockstep.processes.portable import is_portable, portable_problem

__all__ = ["load_products", "product", "register_products", "uses_products"]

_SOURCE = Path(__file__).with_name("product.cpp")
_CALL = Path(__file__).with_name("product_call.h")
_FLAGS = ("-std=c++17", "-O3", "-mavx2", "-mfma", "-ffp-contract=off", "-shared", "-fPIC")
_OPERATIONS = torch.library.Library("lockstep", "FRAGMENT")
_OPERATIONS.define("mm(Tensor left, Tensor right) -> Tensor")
_OPERATIONS.define("addmm(Tensor left, Tensor right, Tensor bias) -> Tensor")
_loaded: set[Path] = set()


def uses_products(threads: int) -> bool:
    """Return True if this process computes the products of compiled formulas with `product.cpp`, which uses one thread.

    It does if bits must be portable, and with one thread on AMD processors: MKL uses its fastest code on Intel processors only.
    """
    return is_portable() or (threads == 1 and _is_amd())


@cache
def _is_amd() -> bool:
    information = Path("/proc/cpuinfo")
    return information.exists() and "AuthenticAMD" in information.read_text() and portable_problem() is None


def load_products(folder: Path, check: Callable[[], None]) -> Any:
    """Load the library from the cache `folder`, and build it if it is missing or damaged, which takes seconds.

    Return it as a `ctypes.CDLL`. `check` is called repeatedly while waiting, and may raise. Raises CacheUnusable and CompilerFailed.
    """
    content = _SOURCE.read_bytes() + " ".join(_FLAGS).encode()
    library = folder / f"{hashlib.sha256(content).hexdigest()[:32]}.so"
    if library not in _loaded:
        build_missing({library: _compile}, find_defect, check)
        with suppress(OSError):  # a cache that another user fills may be read-only
            os.utime(library)
        _loaded.add(library)
    return ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)


def _compile(folder: Path) -> Path:
    library = folder / "products.so"
    command = [find_compiler() or "g++", *_FLAGS, str(_SOURCE), "-o", str(library)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, errors="replace")
    if finished.returncode:
        raise RuntimeError(finished.stderr)
    return library


def product(left: Tensor, right: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute `left @ right + bias` for matrices in float32, `[M, K]` and `[K, N]`, and a vector `[N]`.

    In a compiled formula, `product.cpp` computes it. Otherwise, as while the formula is traced, PyTorch does.
    """
    operations = torch.ops.lockstep
    result: Tensor = operations.mm(left, right) if bias is None else operations.addmm(left, right, bias)
    return result


@torch.library.impl(_OPERATIONS, "mm", "CPU")
def _mm(left: Tensor, right: Tensor) -> Tensor:
    return left @ right


@torch.library.impl(_OPERATIONS, "addmm", "CPU")
def _addmm(left: Tensor, right: Tensor, bias: Tensor) -> Tensor:
    return left @ right + bias


@torch.library.impl(_OPERATIONS, "mm", "Meta")
def _mm_meta(left: Tensor, right: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


@torch.library.impl(_OPERATIONS, "addmm", "Meta")
def _addmm_meta(left: Tensor, right: Tensor, bias: Tensor) -> Tensor:
    return left.new_empty(left.shape[0], right.shape[1])


def register_products() -> None:
    """Register with inductor how it compiles these products: as calls of a C function that writes into a buffer."""
    external: Any = private_interface("torch._inductor.ir", "ExternKernelOut")
    realize_input = private_interface("torch._inductor.ir", "ExternKernel.realize_input")
    create_layout = private_interface("torch._inductor.ir", "FixedLayout")
    create_box = private_interface("torch._inductor.ir", "TensorBox.create")
    lowerings = private_interface("torch._inductor.lowering", "lowerings")

    class Product(external):  # type: ignore[misc]
        def codegen(self, wrapper: Any) -> None:
            wrapper.include_extra_header(str(_CALL))
            super().codegen(wrapper)

    def lowering(function: str) -> Callable[..., Any]:
        def lower(*arguments: Any) -> Any:
            left, right = arguments[:2]
            size = [left.get_size()[0], right.get_size()[1]]
            layout = create_layout(device=left.get_device(), dtype=left.get_dtype(), size=size)
            inputs = [realize_input(argument) for argument in arguments]
            return create_box(Product(layout=layout, inputs=inputs, cpp_kernel_name=function))

        return lower

    for name in ("mm", "addmm"):
        lowerings[getattr(torch.ops.lockstep, name).default] = lowering(f"aoti_torch_lockstep_{name}")

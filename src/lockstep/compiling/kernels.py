"""Pure functions of tensors, run by PyTorch operation by operation or compiled once for this machine's CPU.

Compilation is ahead of time: the function is traced to a graph, PyTorch's inductor turns it into C++, the C++ compiler builds a library,
and the library is kept in a cache. A later process only opens the library: this takes milliseconds, and needs none of the compiler's
modules and memory. There are no guards and no recompilation, so the result depends on the formula and on shapes alone.
"""

import hashlib
import os
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from lockstep.compiling.build import CompilerFailed, build, interface_problem
from lockstep.compiling.cache import CacheUnusable, cache_folder, check_folder, find_defect, locked
from lockstep.compiling.interfaces import InterfaceMissing, private_interface
from lockstep.compiling.products import load_products, register_products, uses_products
from lockstep.processes.portable import PORTABLE_TYPE, is_portable

__all__ = ["Formula", "Kernel", "MakeKernel", "ahead_of_time", "eager"]

_SOURCE_PACKAGES = ("algorithm", "compiling", "curiosity", "distributions", "models", "ppo")
"""The packages whose code can become part of a compiled formula."""


Kernel = Callable[..., Sequence[Tensor]]
"""Function from tensors to tensors, all of fixed shapes."""


class Formula(Protocol):
    """Pure function of tensors."""

    @property
    def key(self) -> str:
        """Text that identifies the operations, except for the shapes and dtypes of the arguments."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return contiguous tensors that share no memory with the arguments."""


MakeKernel = Callable[[Formula, Sequence[Tensor]], Kernel]
"""Function that creates the kernel of a formula, for arguments with the shapes and dtypes of the examples."""


def eager(formula: Formula, examples: Sequence[Tensor]) -> Kernel:
    """Return the formula itself, which PyTorch runs operation by operation."""
    return formula


def ahead_of_time(
    formula: Formula,
    examples: Sequence[Tensor],
    check: Callable[[], None] = lambda: None,
    announce: Callable[[], None] = lambda: None,
) -> Kernel:
    """Load the compiled formula from the cache. If it is missing or damaged, compile it first, which takes seconds to minutes.

    A child process compiles, and others that need the library wait for it. `check` is called many times a second meanwhile, and may raise
    to stop the compilation. `announce` is called before the wait, whichever process compiles. Raises CompilerFailed, in one line.
    """
    folder = cache_folder()
    library = folder / f"{_key(formula, examples)}.so"
    try:
        check_folder(folder)
        if uses_products(torch.get_num_threads()):
            load_products(folder, check)
        runner, _ = _open(library)
        if runner is None:
            announce()
            with locked(library, check):
                runner, problem = _open(library)  # another process may have compiled it meanwhile
                if problem:
                    print(f"{library} {problem}; compiling it again", file=sys.stderr, flush=True)
                if runner is None:
                    build(partial(_compile, formula, examples), library, check)
                    runner, problem = _open(library)
    except CacheUnusable as error:
        raise CompilerFailed(
            f"runtime.compile is 'on': the cache folder {error}; set LOCKSTEP_CACHE to another folder"
        ) from None
    except InterfaceMissing as error:
        raise CompilerFailed(interface_problem(str(error))) from None
    with suppress(OSError):  # a cache that another user fills may be read-only
        os.utime(library)
    if runner is None:
        raise CompilerFailed(f"runtime.compile is 'on': {library} {problem}; use --runtime.compile off in a new run")
    return lambda *tensors: runner.run(list(tensors))


def _open(library: Path) -> tuple[Any, str]:
    """Open a library. Return its runner, or None and the defect, which is empty if there is no such library."""
    problem = find_defect(library)
    if problem is not None:
        return None, problem
    try:
        # PyTorch's public function, `aoti_load_package`, first imports the whole compiler: 1.5 s and 80 MB
        return private_interface("torch._C", "_aoti.AOTIModelContainerRunnerCpu")(str(library), 1), ""
    except InterfaceMissing:
        raise
    except RuntimeError as error:
        return None, f"can't be opened ({' '.join(str(error).split())[:200]})"


def _key(formula: Formula, examples: Sequence[Tensor]) -> str:
    arguments = [f"{tuple(example.shape)} {example.dtype}" for example in examples]
    parts = [formula.key, *arguments, _source_digest(), torch.__version__, _processor(), str(torch.get_num_threads())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@cache
def _source_digest() -> str:
    root = Path(__file__).parents[1]
    paths = [
        path for name in _SOURCE_PACKAGES for end in ("py", "h") for path in sorted((root / name).rglob(f"*.{end}"))
    ]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


@cache
def _processor() -> str:
    """Describe the processor that the compiler builds for."""
    if is_portable():
        return PORTABLE_TYPE
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))


def _compile(formula: Formula, examples: Sequence[Tensor], folder: Path) -> Path:
    """Compile a library in `folder` and return its path."""
    # a forked process does not have the threads of its parent's pool
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _compiled(formula, examples, folder, threads, vec_isa_ok=True)
    except InterfaceMissing:
        raise
    except RuntimeError:
        # for example when the compiler predates the CPU: now find out which instructions it supports
        return _compiled(formula, examples, folder, threads, vec_isa_ok=None)


def _compiled(
    formula: Formula, examples: Sequence[Tensor], folder: Path, threads: int, vec_isa_ok: bool | None
) -> Path:
    """Compile a library for `threads` threads in `folder` and return its path.

    With `vec_isa_ok` True, assume that the compiler supports all of the processor's instructions: testing each takes half a minute.
    """
    from lockstep.compiling.rewrites import rewrites

    aot_compile = private_interface("torch._inductor", "aot_compile")
    make_fx = private_interface("torch.fx.experimental.proxy_tensor", "make_fx")
    register_products()
    private_interface("torch._inductor.cpu_vec_isa", "valid_vec_isa_list.cache_clear")()
    table = rewrites(uses_products(threads)) if examples[0].dtype == torch.float32 else {}
    traced = make_fx(formula, decomposition_table=table)(*examples)
    for node in traced.graph.nodes:
        node.meta.clear()  # make_fx stores metadata that the compiler does not accept
    options = {"cpp.vec_isa_ok": vec_isa_ok, "cpp.threads": threads, "aot_inductor.output_path": str(folder)}
    portable = _PORTABLE_OPTIONS if is_portable() else {}
    return Path(aot_compile(traced, tuple(examples), options={**_OPTIONS, **portable, **options}))


_OPTIONS: dict[str, Any] = {
    "compile_threads": 1,
    "aot_inductor.package": False,
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "aot_inductor.precompile_headers": False,
    "cpp.enable_floating_point_contract_flag": "fast",
}
"""Inductor's options. The wrapper only calls kernels, so it need not be optimized. Precompiled headers, 300 MB of them in /tmp, do not
make compilation faster. Fused multiply-adds are faster and round less."""


_PORTABLE_OPTIONS: dict[str, Any] = {"cpp.march": "x86-64-v3", "cpp.enable_floating_point_contract_flag": "off"}
"""Options for `runtime.bits: portable`. Which operations the compiler fuses depends on its version and on the processor."""

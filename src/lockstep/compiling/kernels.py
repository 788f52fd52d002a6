"""Pure functions of tensors, run by PyTorch operation by operation or compiled once for this machine's CPU.

Compilation is ahead of time: the function is traced to a graph, PyTorch's inductor turns it into C++, the C++ compiler builds a library,
and the library is kept in a cache. A later process only opens the library: this takes milliseconds, and needs none of the compiler's
modules and memory. There are no guards and no recompilation, so the result depends on the formula and on shapes alone.
"""

import hashlib
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from lockstep.compiling.build import CompilerFailed, build_missing, interface_problem
from lockstep.compiling.cache import CacheUnusable, cache_folder, check_folder, find_defect
from lockstep.compiling.interfaces import InterfaceMissing, private_interface
from lockstep.compiling.products import load_products, register_products, uses_products
from lockstep.processes.portable import PORTABLE_TYPE, is_portable

__all__ = ["Formula", "Kernel", "MakeKernel", "ahead_of_time", "compiled_together", "eager"]

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


class _Compiled:
    """Kernel in a compiled library, which is opened after the kernel was made."""

    __slots__ = ("runner",)

    def __init__(self) -> None:
        self.runner: Any = None

    def __call__(self, *tensors: Tensor) -> Sequence[Tensor]:
        results: Sequence[Tensor] = self.runner.run(list(tensors))
        return results


class _Request(NamedTuple):
    """Kernel that is to be compiled."""

    formula: Formula
    examples: Sequence[Tensor]
    kernel: _Compiled


@contextmanager
def compiled_together(
    check: Callable[[], None] = lambda: None, announce: Callable[[], None] = lambda: None
) -> Iterator[MakeKernel]:
    """Yield a function that makes kernels which are compiled ahead of time, see `ahead_of_time`.

    The kernels that it makes in the block are compiled at the end of the block, at the same time, and can be called afterwards. Those that
    it makes later are compiled at once.
    """
    requests: list[_Request] = []
    is_open = True

    def make(formula: Formula, examples: Sequence[Tensor]) -> Kernel:
        request = _Request(formula, examples, _Compiled())
        if is_open:
            requests.append(request)
        else:
            _load([request], check, announce)
        return request.kernel

    yield make
    is_open = False
    if requests:  # a rank that only plays needs neither a cache nor a compiler
        _load(requests, check, announce)
    requests.clear()  # they hold tensors


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
    with compiled_together(check, announce) as make:
        return make(formula, examples)  # compiled when the block ends


def _load(requests: Sequence[_Request], check: Callable[[], None], announce: Callable[[], None]) -> None:
    """Open the libraries of kernels. Compile those that are missing or damaged at the same time."""
    folder = cache_folder()
    libraries = [folder / f"{_key(request.formula, request.examples)}.so" for request in requests]
    makes = {
        library: partial(_compile, request.formula, request.examples)
        for library, request in zip(libraries, requests, strict=True)
    }
    runners: dict[Path, Any] = {}

    def find_problem(library: Path) -> str | None:
        runners[library], problem = _open(library)
        return problem if runners[library] is None else None

    try:
        check_folder(folder)
        if uses_products(torch.get_num_threads()):
            load_products(folder, check)
        build_missing(makes, find_problem, check, announce)
        for library in makes:
            if runners[library] is None and (problem := find_problem(library)) is not None:
                raise CompilerFailed(
                    f"runtime.compile is 'on': {library} {problem}; use --runtime.compile off in a new run"
                )
    except CacheUnusable as error:
        raise CompilerFailed(
            f"runtime.compile is 'on': the cache folder {error}; set LOCKSTEP_CACHE to another folder"
        ) from None
    except InterfaceMissing as error:
        raise CompilerFailed(interface_problem(str(error))) from None
    for library, request in zip(libraries, requests, strict=True):
        request.kernel.runner = runners[library]
        with suppress(OSError):  # a cache that another user fills may be read-only
            os.utime(library)


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

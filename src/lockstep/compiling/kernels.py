"""Pure functions of tensors, run by PyTorch as they are or compiled once for this machine's CPU.

Compiling is ahead of time: traced to a graph, turned into C++ by PyTorch's inductor, built by the C++ compiler, kept in a cache. A later
process only opens the library: milliseconds, and none of the compiler's modules or memory. There are no guards and no recompilation, so
what is computed depends on the formula and on shapes alone.
"""

import hashlib
import os
import platform
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from lockstep.compiling.cache import CacheUnusable, cache_folder, check_folder, defect, locked, share, store, tidy
from lockstep.processes.parent import run_in_child

__all__ = ["CompilerFailed", "Formula", "Kernel", "MakeKernel", "ahead_of_time", "eager"]

_BUILT, _ERROR = "built.so", "error.txt"
_REACHED = ("algorithm", "compiling", "curiosity", "models", "ppo")
"""The packages whose code can become part of a compiled formula."""


class CompilerFailed(RuntimeError):
    """The C++ compiler is missing or did not accept what it was given."""


Kernel = Callable[..., Sequence[Tensor]]
"""Takes and gives tensors of fixed shapes."""


class Formula(Protocol):
    """A pure function of tensors."""

    @property
    def name(self) -> str:
        """What a user is told that it is."""

    @property
    def key(self) -> str:
        """Names all that its operations depend on, besides the shapes and types of its arguments."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Contiguous tensors that share no memory with its arguments."""


MakeKernel = Callable[[Formula, Sequence[Tensor]], Kernel]
"""Makes a kernel of a formula, for arguments like the examples."""


def eager(formula: Formula, examples: Sequence[Tensor]) -> Kernel:
    """The formula itself, run operation by operation."""
    return formula


def ahead_of_time(formula: Formula, examples: Sequence[Tensor], check: Callable[[], None] = lambda: None) -> Kernel:
    """A compiled library from the cache. One that is missing or damaged is compiled first, which takes seconds to minutes.

    Other processes wait for the one that compiles. Compiling happens in a process of its own: `check` is called many times a second
    meanwhile, and may raise to end it.

    Raises CompilerFailed, in one line.
    """
    folder = cache_folder()
    library = folder / f"{_key(formula, examples)}.so"
    try:
        check_folder(folder)
        runner, _ = _opened(library)
        if runner is None:
            with locked(library, check):
                runner, problem = _opened(library)  # another process may have compiled it meanwhile
                if problem:
                    print(f"{library} {problem}; compiling it again", file=sys.stderr, flush=True)
                if runner is None:
                    _build(formula, examples, library, check)
                    runner, problem = _opened(library)
    except CacheUnusable as error:
        raise CompilerFailed(
            f"runtime.compile is 'on', but the cache folder {error}; name another folder in LOCKSTEP_CACHE"
        ) from None
    with suppress(OSError):  # a cache that others fill may be read-only
        os.utime(library)
    if runner is None:
        raise CompilerFailed(
            f"runtime.compile is 'on', but {library} {problem}; use --runtime.compile off in a new run"
        )
    return lambda *tensors: runner.run(list(tensors))


def _opened(library: Path) -> tuple[Any, str]:
    """The open library, or None and its defect, which is empty if there is no library."""
    problem = defect(library)
    if problem is not None:
        return None, problem
    try:
        # PyTorch's public way, `aoti_load_package`, imports the whole compiler first: 1.5 s and 80 MB
        return torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1), ""
    except RuntimeError as error:
        return None, f"can't be opened ({' '.join(str(error).split())[:200]})"


def _key(formula: Formula, examples: Sequence[Tensor]) -> str:
    arguments = [f"{tuple(example.shape)} {example.dtype}" for example in examples]
    parts = [formula.key, *arguments, _sources(), torch.__version__, _processor(), str(torch.get_num_threads())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@cache
def _sources() -> str:
    """A digest of the code that formulas reach."""
    root = Path(__file__).parents[1]
    paths = [path for name in _REACHED for path in sorted((root / name).rglob("*.py"))]
    return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


@cache
def _processor() -> str:
    """What the compiler builds for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))


def _build(formula: Formula, examples: Sequence[Tensor], library: Path, check: Callable[[], None]) -> None:
    """Compile `formula` into `library`, in a process of its own. Only the process that holds the library's lock may.

    Where there is a GPU it is this process, since CUDA does not work in a forked one: `check` is heeded after the compilation then.
    """
    print(f"compiling the {formula.name} for this machine, once; it may take a minute", file=sys.stderr, flush=True)
    tidy(library)
    with _workplace(library) as folder:
        work = partial(_compile, formula, examples, folder)
        if _run_here(work) if torch.cuda.is_available() else run_in_child(work, check):
            log = library.parent / "failure.log"
            error = folder / _ERROR
            log.write_text(error.read_text() if error.exists() else "the compiling process was killed")
            raise CompilerFailed(
                f"runtime.compile is 'on', but compiling failed, see {log}; use --runtime.compile off in a new run"
            )
        store(folder / _BUILT, library)


def _run_here(work: Callable[[], None]) -> int:
    """Run `work` in this process, and return 1 if it raised, else 0."""
    threads = torch.get_num_threads()
    try:
        with warnings.catch_warnings():
            work()
    except Exception:
        return 1  # it has left its message
    finally:
        torch.set_num_threads(threads)
    return 0


def _compile(formula: Formula, examples: Sequence[Tensor], folder: Path) -> None:
    """Leave the library in `folder`, or the compiler's message."""
    warnings.simplefilter("ignore")
    # threads of the parent's pool do not exist here
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        try:
            built = _compiled(formula, examples, folder, threads, vec_isa_ok=True)
        except RuntimeError:
            # for example when the compiler predates the CPU: which instructions it knows is found out then
            built = _compiled(formula, examples, folder, threads, vec_isa_ok=None)
    except BaseException as error:
        (folder / _ERROR).write_text(str(error))
        raise
    shutil.copy(str(built), folder / _BUILT)


def _compiled(
    formula: Formula, examples: Sequence[Tensor], folder: Path, threads: int, vec_isa_ok: bool | None
) -> object:
    """The path of a library in `folder`, for `threads` threads. With `vec_isa_ok` the compiler is trusted to know all of the processor's
    instructions; to try each takes half a minute.
    """
    from torch._inductor import aot_compile
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list
    from torch.fx.experimental.proxy_tensor import make_fx

    from lockstep.compiling.rewrites import REWRITES, lower_products

    lower_products()
    valid_vec_isa_list.cache_clear()
    traced = make_fx(formula, decomposition_table=REWRITES if examples[0].dtype == torch.float32 else {})(*examples)
    for node in traced.graph.nodes:
        node.meta.clear()  # traces of its own, which the compiler would not accept
    options = {"cpp.vec_isa_ok": vec_isa_ok, "cpp.threads": threads, "aot_inductor.output_path": str(folder)}
    return aot_compile(traced, tuple(examples), options={**_OPTIONS, **options})


_OPTIONS: dict[str, Any] = {
    "compile_threads": 1,
    "aot_inductor.package": False,
    "aot_inductor.compile_wrapper_opt_level": "O0",
    "aot_inductor.precompile_headers": False,
    "cpp.enable_floating_point_contract_flag": "fast",
}
"""A wrapper that only calls kernels need not be optimized; headers compiled beforehand, 300 MB of them in /tmp, make nothing faster; fused
multiply-adds are faster and round less."""


@contextmanager
def _workplace(library: Path) -> Iterator[Path]:
    """A temporary folder for all that the compiler leaves."""
    before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    with tempfile.TemporaryDirectory(
        dir=library.parent, prefix=f"building-{share(library)}-", ignore_cleanup_errors=True
    ) as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["TORCHINDUCTOR_CACHE_DIR"]
            else:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = before

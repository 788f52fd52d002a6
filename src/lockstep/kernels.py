"""Pure functions of tensors, run by PyTorch as they are or compiled once for this machine's CPU.

Compiling is ahead of time: traced to a graph, turned into C++ by PyTorch's inductor, built by the C++ compiler, kept in a cache. A later
process only opens the library: milliseconds, and none of the compiler's modules or memory. There are no guards and no recompilation, so
what is computed depends on the formula and on shapes alone.
"""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["CompilerFailed", "Formula", "Kernel", "MakeKernel", "ahead_of_time", "cache_folder", "plainly"]

_KEPT = 200
"""Libraries in the cache, of 1 to 2 MB each; those that were not used for longest go."""


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


def plainly(formula: Formula, examples: Sequence[Tensor]) -> Kernel:
    """The formula itself, run operation by operation."""
    return formula


def ahead_of_time(formula: Formula, examples: Sequence[Tensor]) -> Kernel:
    """A compiled library from the cache; made first, seconds, where it is not there yet. Other processes wait for one that makes some.

    Raises CompilerFailed, in one line.
    """
    library = cache_folder() / f"{_key(formula, examples)}.so"
    if not library.exists():
        with _locked(library):
            if not library.exists():
                _build(formula, examples, library)
    with suppress(OSError):  # a cache that others fill may be read-only
        os.utime(library)
    # PyTorch's public way, `aoti_load_package`, imports the whole compiler first: 1.5 s and 80 MB
    runner: Any = torch._C._aoti.AOTIModelContainerRunnerCpu(str(library), 1)
    return lambda *tensors: runner.run(list(tensors))


@contextmanager
def _locked(library: Path) -> Iterator[None]:
    """For one process at a time, among those that want this library or another of its sixteenth of the cache."""
    folder = library.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / f"lock-{_share(library)}").open("w")
    except OSError as error:
        raise CompilerFailed(
            f"runtime.compile is 'on', but {folder} can't be written ({error.strerror}); name another folder in LOCKSTEP_CACHE"
        ) from None
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the system lets go of it if this process dies
        yield


def _share(library: Path) -> str:
    return library.name[0]


def cache_folder() -> Path:
    """Where libraries are kept: `LOCKSTEP_CACHE`, else `lockstep` in the user's cache folder."""
    chosen = os.environ.get("LOCKSTEP_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lockstep"


def _key(formula: Formula, examples: Sequence[Tensor]) -> str:
    arguments = [f"{tuple(example.shape)} {example.dtype}" for example in examples]
    parts = [formula.key, *arguments, _sources(), torch.__version__, _processor(), str(torch.get_num_threads())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


@cache
def _sources() -> str:
    """A digest of this package: whatever may have changed in a formula."""
    root = Path(__file__).parent
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(root.rglob("*.py")))).hexdigest()


@cache
def _processor() -> str:
    """What the compiler builds for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return "\n".join(dict.fromkeys(line for line in lines if line.startswith(("model name", "flags", "Features"))))


def _build(formula: Formula, examples: Sequence[Tensor], library: Path) -> None:
    """Compiles `formula` into `library`, which appears whole or not at all. Only who holds its lock may."""
    print(f"compiling the {formula.name} for this machine, once; it may take a minute", file=sys.stderr, flush=True)
    _tidy(library)
    with _workplace(library) as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            try:
                built = _compiled(formula, examples, folder, vec_isa_ok=True)
            except (
                RuntimeError
            ):  # as of a compiler that is older than the processor: which instructions it knows is found out then
                built = _compiled(formula, examples, folder, vec_isa_ok=None)
        except (subprocess.CalledProcessError, RuntimeError, OSError) as error:
            log = library.parent / "failure.log"
            log.write_text(str(error))
            raise CompilerFailed(
                f"runtime.compile is 'on', but compiling failed, see {log}; use --runtime.compile off in a new run"
            ) from error
        Path(shutil.copy(str(built), folder / "built.so")).replace(library)


def _compiled(formula: Formula, examples: Sequence[Tensor], folder: Path, vec_isa_ok: bool | None) -> object:
    """The path of a library in `folder`. With `vec_isa_ok` the compiler is trusted to know all of the processor's instructions; to try each
    takes half a minute.
    """
    from torch._inductor import aot_compile
    from torch._inductor.cpu_vec_isa import valid_vec_isa_list
    from torch.fx.experimental.proxy_tensor import make_fx

    from lockstep.rewrites import REWRITES, lower_products

    lower_products()
    valid_vec_isa_list.cache_clear()
    traced = make_fx(formula, decomposition_table=REWRITES if examples[0].dtype == torch.float32 else {})(*examples)
    for node in traced.graph.nodes:
        node.meta.clear()  # traces of its own, which the compiler would not accept
    own = {"cpp.vec_isa_ok": vec_isa_ok, "aot_inductor.output_path": str(folder)}
    return aot_compile(traced, tuple(examples), options={**_OPTIONS, **own})


def _tidy(library: Path) -> None:
    """Removes what was left by killed processes that held the same lock, and libraries beyond those that are kept."""
    for left in library.parent.glob(f"building-{_share(library)}-*"):
        shutil.rmtree(left, ignore_errors=True)
    for old in sorted(library.parent.glob("*.so"), key=_used)[:-_KEPT]:
        old.unlink(missing_ok=True)


def _used(library: Path) -> float:
    """When it was last used; 0 if another process has removed it."""
    with suppress(OSError):
        return library.stat().st_mtime
    return 0.0


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
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=f"building-{_share(library)}-") as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            yield Path(folder)
        finally:
            if before is None:
                del os.environ["TORCHINDUCTOR_CACHE_DIR"]
            else:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = before

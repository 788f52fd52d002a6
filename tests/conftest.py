"""Configuration and fixtures of all tests: order, skipped tests, threads, and processes that run lockstep."""

import ctypes
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch
from tests.forked import PORTABLE_SERVER, SERVERS, fork_ranks
from tests.warm import ROOT, Finished, Program, SpawnedProgram, Warm, connect, serving, start_server

from lockstep.processes.portable import portable_environment

WORKS = (
    *("lockstep.api", "lockstep.cli.main", "lockstep.cli.resume", "lockstep.cli.train", "lockstep.cli.train_rank"),
    *("lockstep.envs.vector", "lockstep.experiment.build", "lockstep.loop", "lockstep.telemetry.recorder"),
    *("gymnasium.envs.classic_control", "numpy.ctypeslib"),
)
"""Modules that almost every process imports which trains."""
FABRIC = ("lockstep.runtime.fabric",) if importlib.util.find_spec("lightning_fabric") else ()
TRAINS = (*WORKS, *FABRIC)
"""Modules that a training process imports."""
SERVERS_FOLDER = pytest.StashKey[Path]()
"""Folder with the addresses of the servers of all workers."""
LONGEST = ("tests/gpu/", "tests/pages/", "tests/compiling/", "tests/agreement/")
"""Folders of tests that run first, in this order."""

# A test must not fail because the machine is busy.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")


def pytest_configure(config: pytest.Config) -> None:
    """Build the interpreter of kernels once for all tests and their processes."""
    os.environ["LOCKSTEP_CACHE"] = str(ROOT / ".kernel_cache")  # not .cache, which building the documentation empties


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start a server for each worker of pytest-xdist. It imports its modules while the worker collects the tests.

    The tests of agreement need two servers. They use the first one of another worker as well, because each start takes 5 seconds of CPU time.
    All workers use the same server for portable bits.
    """

    def start(name: str, environ: dict[str, str], *modules: str) -> None:
        server = start_server(f"{node.config.stash[SERVERS_FOLDER]}/{name}", environ, *modules)
        node.config.add_cleanup(server.wait)
        node.config.add_cleanup(server.kill)

    own = node.gateway.id
    first = SERVERS_FOLDER not in node.config.stash
    if first:
        created = tempfile.TemporaryDirectory(prefix="warm-")
        node.config.stash[SERVERS_FOLDER] = Path(created.name)
        node.config.add_cleanup(created.cleanup)
    folder = node.config.stash[SERVERS_FOLDER]
    start(own, plain_environ(), *TRAINS)
    if first:
        start("portable", portable_environment(plain_environ()), *WORKS)
    node.workerinput["portable server"] = f"{folder}/portable"
    other = "gw0" if own != "gw0" else "gw1"
    node.workerinput["servers"] = [
        f"{folder}/{own}",
        *([f"{folder}/{other}"] if len(node.config.option.tx) > 1 else []),
    ]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Run all tests of a module with module fixtures in one process, so that each fixture is created once.

    Groups by mark have no effect with pytest 9.2 (pytest-dev/pytest-xdist#1386).
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # see pytest_collection_modifyitems

    class ModuleFixtureScheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return module if _has_module_fixtures(module) else nodeid

    return ModuleFixtureScheduling(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest tests first, so that none of them runs last, while the other processes are idle."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> tuple[int, bool]:
        first = [place for place, start in enumerate(LONGEST) if item.nodeid.startswith(start)]
        return min(first, default=len(LONGEST)), item.path not in slow

    items.sort(key=place)


SET_BY_MODULES = (
    *("LD_LIBRARY_PATH", "MPLBACKEND", "MPLCONFIGDIR", "MUJOCO_GL", "PYOPENGL_PLATFORM", "SDL_VIDEODRIVER"),
    *("CUBLAS_WORKSPACE_CONFIG", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCHINDUCTOR_CACHE_DIR", "TRACKIO_DIR"),
    *("PYGAME_HIDE_SUPPORT_PROMPT", "PYTORCH_NVML_BASED_CUDA_CHECK", "SDL_AUDIODRIVER"),
)
"""Variables that modules set in the process of the tests. Subprocesses that had them would not be forked: see `tests.forked.suits`."""
_AT_START = {name: os.environ[name] for name in SET_BY_MODULES if name in os.environ}


@cache
def _has_module_fixtures(module: str) -> bool:
    return 'scope="module"' in (ROOT / module).read_text()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("extra"):
        for module in mark.args:
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"{module} is not installed: pip install 'lockstep-rl[all,ray]'")
    for mark in item.iter_markers("command"):
        for command in mark.args:
            if shutil.which(command) is None:
                pytest.skip(f"{command} is not installed here")
    if item.get_closest_marker("render") and not _egl():
        pytest.skip("EGL is missing: apt-get install libegl1 libgl1")
    if item.get_closest_marker("gpu") and not torch.cuda.is_available():
        pytest.skip("no CUDA device")


def _egl() -> bool:
    try:
        ctypes.CDLL("libEGL.so.1")
        ctypes.CDLL("libGL.so.1")
    except OSError:
        return False
    return True


@pytest.fixture(scope="session", autouse=True)
def default_sigint_handler() -> None:
    """Restore the handler of Ctrl-C, which shells disable for background processes and their children."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def single_thread() -> None:
    """Use one thread: bits depend on the number of threads, and test processes share the cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def root() -> Path:
    """Root folder of the checkout."""
    return ROOT


def plain_environ() -> dict[str, str]:
    """Return environment variables for a subprocess that runs the code of this checkout and prints plain text, 120 columns wide.

    Hashes are random: with a fixed seed the order of sets would be equal in all processes, which could hide differences.
    """
    left_out = ("FORCE_COLOR", "DISPLAY", *SET_BY_MODULES)
    inherited = {name: value for name, value in os.environ.items() if name not in left_out}
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    shown = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    alone = {"PET_STANDALONE": "1"}  # otherwise torchrun uses the same port in all tests
    return inherited | _AT_START | shown | alone | {"PYTHONPATH": path, "PYTHONHASHSEED": "random"}


@pytest.fixture
def environ() -> dict[str, str]:
    """Environment variables for subprocesses; see `plain_environ`."""
    return plain_environ()


@pytest.fixture(scope="session")
def servers(request: pytest.FixtureRequest) -> list[str]:
    """Addresses of the servers that were started for this process and for another worker."""
    return getattr(request.config, "workerinput", {}).get("servers", [])


@pytest.fixture(scope="session", autouse=True)
def forked_ranks(servers: list[str], request: pytest.FixtureRequest) -> None:
    """Let the servers fork also the ranks that tests start from this process, for example by `lockstep.train`."""
    if servers:
        os.environ[SERVERS] = os.pathsep.join(servers)
        os.environ[PORTABLE_SERVER] = request.config.workerinput["portable server"]  # type: ignore[attr-defined]
        for address in servers:
            connect(address, {})
        fork_ranks(plain_environ())


@pytest.fixture(scope="session")
def warm(servers: list[str]) -> Iterator[Warm]:
    """Server that starts processes with PyTorch already imported."""
    if servers:
        yield connect(servers[0], plain_environ())
    else:
        with serving(plain_environ(), *TRAINS) as server:
            yield server


@pytest.fixture(scope="session")
def portable_server(request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Environment variable with which ranks that have portable bits are forked."""
    address, environ = (
        getattr(request.config, "workerinput", {}).get("portable server"),
        portable_environment(plain_environ()),
    )
    if address:
        yield {PORTABLE_SERVER: connect(address, environ).address}
    else:
        with serving(environ, *WORKS) as server:
            yield {PORTABLE_SERVER: server.address}


@pytest.fixture
def run_cli(tmp_path: Path, environ: dict[str, str], warm: Warm) -> Callable[..., Finished]:
    """Return `run_cli("train", "cartpole", …)`, which runs `python -m lockstep …` in `tmp_path` and returns (rc, stdout, stderr).

    Keywords: `timeout` in seconds, after which the command and its children are killed and the test fails; `cwd`;
    `env`, added to the environment; `prefix`, words before `lockstep` instead of `python -m`, for example of torchrun.
    """

    def run(
        *args: object,
        timeout: float = 250,
        cwd: Path = tmp_path,
        env: dict[str, str] | None = None,
        prefix: tuple[str, ...] = (),
    ) -> Finished:
        variables = environ | (env or {})
        if prefix or not warm.suits(variables):
            command = [*(prefix or (sys.executable, "-m")), "lockstep", *map(str, args)]
            started: Program = SpawnedProgram(command, cwd, variables)
        else:
            started = warm.start(*args, cwd=cwd, environ=variables)
        try:
            return started.wait(timeout)
        except subprocess.TimeoutExpired as error:
            pytest.fail(
                f"lockstep {shlex.join(map(str, args))} did not end within {timeout:g} s\n{error.output}\n{error.stderr}"
            )
        finally:
            started.kill()

    return run


@pytest.fixture(scope="session")
def run_in(warm: Warm) -> Callable[..., None]:
    """Return `run_in(folder, "train", …)`, which runs `lockstep …` in `folder` and checks that it succeeds, for module fixtures."""

    def run(folder: Path, *args: object) -> None:
        started = warm.start(*args, cwd=folder, environ=plain_environ())
        try:
            finished = started.wait(250)
        finally:
            started.kill()
        assert finished.rc == 0, finished

    return run


@pytest.fixture
def begin(tmp_path: Path, environ: dict[str, str], warm: Warm) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Return `begin(*args)`, which starts `lockstep …` without waiting for it. Its remaining processes are killed after the test.

    With `cold`, the command and its ranks are started as users start them, not forked from a process that has imported PyTorch.
    """
    started: list[subprocess.Popen[str]] = []

    def start(*args: object, cold: bool = False) -> subprocess.Popen[str]:
        if not cold and warm.suits(environ):
            started.append(warm.begin(*args, cwd=tmp_path, environ=environ))
            return started[-1]
        command = [sys.executable, "-m", "lockstep", *map(str, args)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=tmp_path, env=environ, start_new_session=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()

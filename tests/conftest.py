"""What all tests share: one thread, real processes, and reasons for what is skipped."""

import ctypes
import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import hypothesis
import pytest
import torch
from tests import compiler
from tests.warm import ROOT, Cold, Finished, Program, Warm, serving

TRAINS = ("lockstep.cli.work", "lockstep.api")
"""What a process that trains imports."""
LONGEST = ("tests/gpu/", "tests/pages/", "tests/compiling/", "tests/agreement/")
"""Tests that come first, in this order."""

# On a machine that is busy everything is slow, which is no fault of a test's.
hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """What a module makes once for all its tests is made once: one process does them all.

    (Groups by mark do nothing under pytest 9.2: pytest-dev/pytest-xdist#1386.)
    """
    from xdist.scheduler import LoadScopeScheduling

    config.option.loadscopereorder = False  # see pytest_collection_modifyitems

    class Together(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            module = nodeid.partition("::")[0]
            return module if _makes_once(module) else nodeid

    return Together(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first: a long one that came last would run alone, while other processes have nothing to do."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}

    def place(item: pytest.Item) -> tuple[int, bool]:
        first = [place for place, start in enumerate(LONGEST) if item.nodeid.startswith(start)]
        return min(first, default=len(LONGEST)), item.path not in slow

    items.sort(key=place)


@cache
def _makes_once(module: str) -> bool:
    return 'scope="module"' in (ROOT / module).read_text()


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("extra"):
        for module in mark.args:
            if importlib.util.find_spec(module) is None:
                pytest.skip(f"{module} is not installed: pip install 'lockstep-rl[all]'")
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
def ctrl_c_is_heard() -> None:
    """Shells start what they put into the background, a whole test run too, so that it and all that it starts ignore Ctrl-C."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Bits depend on the number of threads, and two test processes share two cores."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> None:
    """Kernels are compiled once for all tests and their processes; they are named by all that they depend on, this checkout's sources too."""
    os.environ["LOCKSTEP_CACHE"] = str(ROOT / ".cache" / "kernels")
    os.environ["PATH"] = compiler.install(ROOT / ".cache")


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


def plain_environ() -> dict[str, str]:
    """Environment variables for a subprocess that runs this checkout's code and prints plain text, 120 columns wide."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "DISPLAY")}
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    shown = {"COLUMNS": "120", "NO_COLOR": "1", "TERM": "dumb"}
    alone = {"PET_STANDALONE": "1"}  # or torchrun would have the same port in all tests
    return inherited | shown | alone | {"PYTHONPATH": path}


@pytest.fixture
def environ() -> dict[str, str]:
    """See `plain_environ`."""
    return plain_environ()


@pytest.fixture(scope="session")
def warm() -> Iterator[Warm]:
    """Starts processes that have imported PyTorch already."""
    with serving(plain_environ(), *TRAINS) as server:
        yield server


@pytest.fixture
def run_cli(tmp_path: Path, environ: dict[str, str], warm: Warm) -> Callable[..., Finished]:
    """`run_cli("train", "cartpole", …)` runs `python -m lockstep …` in `tmp_path` and gives (rc, stdout, stderr).

    Keywords: `timeout` in seconds, after which the command and all that it started are killed and the test fails; `cwd`;
    `env`, added to the environment; `prefix`, words before `lockstep` instead of `python -m`, say of torchrun.
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
            started: Program = Cold(command, cwd, variables)
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
    """`run_in(folder, "train", …)` runs `lockstep …` in `folder`, which must succeed: for fixtures that last longer than one test."""

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
    """`begin(*args)` starts `lockstep …` without waiting for it; all that is left of it is killed after the test.

    With `cold`, neither it nor its ranks are forked from a process that has imported PyTorch.
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

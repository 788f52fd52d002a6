"""Server that has imported PyTorch and forks programs, which saves half of the time of short tests.

`python -m tests.warm SOCKET MODULE …` imports the modules, listens on the socket, and ends with its parent process. It forks a program for
each request:

    test ── module, words, folder, environment, open files ──▶ waits for the program, sends its process id and exit code
                                                               └─ the program, in its own session

The program is killed when the connection is closed. A program that launches ranks has them forked in the same way.
"""

import atexit
import json
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import NamedTuple, NoReturn, Protocol

import torch
from tests.forked import PORTABLE_SERVER, SERVERS, ForkedPopen, fork_ranks, request, suits

from lockstep.processes.parent import die_with_parent
from lockstep.processes.portable import is_portable
from lockstep.run.environment import packages

ROOT = Path(__file__).parents[1]
_PIECE = 65536
_started_with = dict(os.environ)
"""Environment of this process before it imported other modules, some of which add variables."""


class Finished(NamedTuple):
    """Exit code and output of a finished command."""

    rc: int
    stdout: str
    stderr: str


class Program(Protocol):
    """Program that was started."""

    def wait(self, timeout: float) -> Finished:
        """Wait until the program and its children have closed their outputs. After `timeout` seconds kill them and raise TimeoutExpired."""

    def kill(self) -> None:
        """Kill the program and its children, if it has not ended."""


class SpawnedProgram:
    """Program that is started as usual."""

    def __init__(self, command: Sequence[str], cwd: Path, environ: dict[str, str], files: Sequence[int] = ()) -> None:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        session = {"text": True, "start_new_session": True, "pass_fds": files}
        self._process = subprocess.Popen(command, cwd=cwd, env=environ, **session, **pipes)

    def wait(self, timeout: float) -> Finished:
        """See `Program`."""
        try:
            stdout, stderr = self._process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired as error:
            self.kill()
            stdout, stderr = self._process.communicate()
            raise subprocess.TimeoutExpired(error.cmd, timeout, stdout, stderr) from None
        return Finished(self._process.returncode, stdout, stderr)

    def kill(self) -> None:
        """See `Program`."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)


class ForkedProgram:
    """Program that was forked by the server."""

    def __init__(self, connection: socket.socket, outputs: Sequence[int]) -> None:
        self._connection, self._answers = connection, connection.makefile()
        self._pid, self._code = int(self._answers.readline()), None
        self._texts = [b""] * len(outputs)
        self._readers = [Thread(target=self._read, args=pair, daemon=True) for pair in enumerate(outputs)]
        for reader in self._readers:
            reader.start()

    def _read(self, place: int, output: int) -> None:
        with os.fdopen(output, "rb") as file:
            self._texts[place] = file.read()

    def wait(self, timeout: float) -> Finished:
        """See `Program`."""
        deadline = time.monotonic() + timeout
        for reader in self._readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        late = any(reader.is_alive() for reader in self._readers)
        if late:
            self._kill()
        for reader in self._readers:
            reader.join()
        self._code = int(self._answers.readline())
        stdout, stderr = (text.decode() for text in self._texts)
        if late:
            raise subprocess.TimeoutExpired("python", timeout, stdout, stderr)
        return Finished(self._code, stdout, stderr)

    def kill(self) -> None:
        """See `Program`."""
        if self._code is None:
            self._kill()
        self._answers.close()
        self._connection.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)


class Warm:
    """Client of the server that forks programs."""

    def __init__(self, address: str, environ: dict[str, str]) -> None:
        self.address, self.peers, self._environ = address, [address], environ

    def suits(self, environ: dict[str, str]) -> bool:
        """Return True if a program with this environment imports the same modules as the server."""
        return suits(environ, self._environ)

    def start(
        self, *words: object, cwd: Path, environ: dict[str, str], module: str = "lockstep", files: Sequence[int] = ()
    ) -> ForkedProgram:
        """Start `python -m MODULE WORDS …`, which inherits `files` as descriptors 3, 4, …."""
        pipes = [os.pipe() for _ in range(2)]
        descriptors = [os.open(os.devnull, os.O_RDONLY), *(write for _, write in pipes)]
        task = {"module": module, "words": list(map(str, words)), "cwd": str(cwd), "environ": self._served(environ)}
        connection = request(self.address, task, [*descriptors, *files])
        for file in descriptors:
            os.close(file)
        return ForkedProgram(connection, [read for read, _ in pipes])

    def begin(
        self, *words: object, cwd: Path, environ: dict[str, str], module: str = "lockstep", files: Sequence[int] = ()
    ) -> "subprocess.Popen[str]":
        """Start it as a `Popen` with two pipes. LOCKSTEP_MEMORY, one of `files`, is set to the number of the inherited descriptor."""
        return ForkedPopen(
            [sys.executable, "-m", module, *map(str, words)],
            cwd=cwd,
            env=self._served(environ),
            pass_fds=files,
            server=self.address,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _served(self, environ: dict[str, str]) -> dict[str, str]:
        return environ | {SERVERS: os.pathsep.join(self.peers)}


def start_server(address: str, environ: dict[str, str], *modules: str) -> "subprocess.Popen[bytes]":
    """Start a server that imports `modules`, without waiting until it has imported them."""
    command = [sys.executable, "-m", "tests.warm", address, *modules]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL)


def connect(address: str, environ: dict[str, str], timeout: float = 200) -> Warm:
    """Wait until the server at the address has imported its modules. `environ` is its environment."""
    deadline = time.monotonic() + timeout
    while not Path(address).exists():
        assert time.monotonic() < deadline, f"the server {address} has not started"
        time.sleep(0.01)
    return Warm(address, environ)


@contextmanager
def serving(environ: dict[str, str], *modules: str) -> Iterator[Warm]:
    """Run a server that has imported `modules` for the duration of the block."""
    with (
        tempfile.TemporaryDirectory(prefix="warm-") as folder,
        start_server(f"{folder}/server", environ, *modules) as process,
    ):
        try:
            yield connect(f"{folder}/server", environ)
        finally:
            process.kill()


def run_program(
    files: Sequence[int],
    module: str,
    words: list[str],
    cwd: str,
    environ: dict[str, str],
    safe: bool = False,
    blocked: Sequence[int] = (),
) -> NoReturn:
    """Run the program in this process. `safe` is Python's option -P; `blocked` are the initially blocked signals."""
    os.setsid()
    os.chdir(cwd)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for place, file in enumerate(files):  # each of them is above its place
        os.dup2(file, place)
        os.close(file)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace")
    os.environ.clear()
    os.environ.update(environ)
    tempfile.tempdir = None  # the server's, which may have another TMPDIR
    if "LOCKSTEP_PARENT" in environ:  # with which a rank ends
        os.environ["LOCKSTEP_PARENT"] = str(os.getppid())
    if torch.cuda.is_available():
        execute(module, words, safe)
    if SERVERS in environ:
        if is_portable():  # sidecars of a rank have its variables
            os.environ[SERVERS] = environ[PORTABLE_SERVER]
        fork_ranks(_started_with)
    sys.argv[1:] = words
    own = _started_with.get("PYTHONPATH", "")
    path = environ.get("PYTHONPATH", own)
    folders = sys.path[1:] if path == own else path.split(os.pathsep)
    sys.path[:] = folders if safe else [cwd, *folders]
    if module.startswith("tests."):
        sys.path.append(str(ROOT))
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:  # such as argparse's after `--help`
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        exit_without_cleanup(end.code if isinstance(end.code, int) else int(end.code is not None))
    except Exception as error:
        sys.excepthook(type(error), error, error.__traceback__)
        exit_without_cleanup(1)
    exit_without_cleanup(0)


def execute(module: str, words: list[str], safe: bool) -> NoReturn:
    """Start the program as usual in this process: CUDA does not work in a process that was forked from one that has looked for GPUs."""
    if module.startswith("tests."):
        os.environ["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    os.execv(sys.executable, [sys.executable, *["-P"] * safe, "-m", module, *words])


def exit_without_cleanup(code: int) -> NoReturn:
    """Exit as `lockstep` does, after exit handlers: freeing PyTorch's modules takes 0.3 to 1 s."""
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


class Forks:
    """Programs that were forked by this process and have not ended, and the connections of those who wait for them."""

    def __init__(self, listener: socket.socket, address: str) -> None:
        self._address, self._listener = address, listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ, lambda: self._begin(listener.accept()[0]))

    def serve(self) -> NoReturn:
        """Fork a program for each request, report its end, and kill it if its connection is closed."""
        while True:
            for key, _ in self._selector.select():
                if self._selector.get_map().get(key.fd) is key:  # not closed, or replaced, because of an earlier event
                    key.data()

    def _begin(self, connection: socket.socket) -> None:
        content, files, *_ = socket.recv_fds(connection, _PIECE, 16)
        while not content.endswith(b"\n"):
            content += connection.recv(_PIECE)
        task, parent = json.loads(content), os.getpid()
        child = os.fork()
        if child == 0:
            connection.close()
            for key in list(self._selector.get_map().values()):
                if isinstance(key.fileobj, socket.socket):
                    key.fileobj.close()
                else:
                    os.close(key.fd)
            self._selector.close()
            die_with_parent(parent)
            arguments_file(self._address, os.getpid()).write_text("\0".join(task["words"]))
            run_program(files, **task)
        for file in files:
            os.close(file)
        ended = os.pidfd_open(child)
        self._selector.register(ended, selectors.EVENT_READ, lambda: self._end(child, ended, connection))
        self._selector.register(connection, selectors.EVENT_READ, lambda: self._kill(child, connection))
        self._answer(connection, child)

    def _kill(self, child: int, connection: socket.socket) -> None:
        self._selector.unregister(connection)
        os.kill(child, signal.SIGKILL)

    def _end(self, child: int, ended: int, connection: socket.socket) -> None:
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        arguments_file(self._address, child).unlink(missing_ok=True)
        self._selector.unregister(ended)
        os.close(ended)
        if connection.fileno() in self._selector.get_map():
            self._selector.unregister(connection)
        self._answer(connection, code)
        connection.close()

    def _answer(self, connection: socket.socket, number: int) -> None:
        with suppress(OSError):
            connection.sendall(f"{number}\n".encode())


def arguments_file(address: str, process: int) -> Path:
    """Return the file with the arguments of a forked program. Its command line in /proc is that of the server."""
    return Path(f"{address}.{process}")


def main(address: str, *modules: str) -> None:
    """Import the modules and serve requests."""
    die_with_parent(os.getppid())
    for module in modules:
        import_module(module)
    packages()  # reads files for 20 ms, and keeps the versions
    # the finalizers of PyTorch's libraries take 40 ms at the end of each program
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen()
        Path(f"{address}.new").rename(address)
        Forks(listener, address).serve()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Programs that need not import PyTorch first, half of what short tests take: they are forked from a process that has.

`python -m tests.warm SOCKET MODULE …` imports the modules, listens there, and ends with the process that started it. It forks for every
request, and the fork forks again:

    test ── module, words, folder, environment, open files ──▶ waits for the program, tells its process id and how it ended
                                                               └─ the program, in a session of its own

The program is killed when the connection is closed. A program that launches ranks has them forked in the same way.
"""

import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import NamedTuple, Protocol

from tests.forked import SERVERS, ForkedPopen, fork_ranks, request, suits

from lockstep.processes.parent import die_with_parent

ROOT = Path(__file__).parents[1]
_PIECE = 65536


class Finished(NamedTuple):
    """What a command left."""

    rc: int
    stdout: str
    stderr: str


class Program(Protocol):
    """One that was started."""

    def wait(self, timeout: float) -> Finished:
        """Returns when it and all that it started have closed their outputs. Raises TimeoutExpired, after killing them."""

    def kill(self) -> None:
        """Kills it and what it started, if it has not ended."""


class Cold:
    """A program that is started as usual."""

    def __init__(self, command: Sequence[str], cwd: Path, environ: dict[str, str]) -> None:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        self._process = subprocess.Popen(command, cwd=cwd, env=environ, text=True, start_new_session=True, **pipes)

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


class Forked:
    """A program that was forked."""

    def __init__(self, line: socket.socket, outputs: Sequence[int]) -> None:
        self._line, self._answers = line, line.makefile()
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
        self._line.close()

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)


class Warm:
    """The process that is forked, as tests see it."""

    def __init__(self, address: str, environ: dict[str, str]) -> None:
        self.address, self.peers, self._environ = address, [address], environ

    def suits(self, environ: dict[str, str]) -> bool:
        """Whether a program with this environment imports the same."""
        return suits(environ, self._environ)

    def start(
        self, *words: object, cwd: Path, environ: dict[str, str], module: str = "lockstep", files: Sequence[int] = ()
    ) -> Forked:
        """Starts `python -m MODULE WORDS …`, which finds `files` open as 3, 4, …."""
        pipes = [os.pipe() for _ in range(2)]
        own = [os.open(os.devnull, os.O_RDONLY), *(write for _, write in pipes)]
        asked = {"module": module, "words": list(map(str, words)), "cwd": str(cwd), "environ": self._served(environ)}
        line = request(self.address, asked, [*own, *files])
        for file in own:
            os.close(file)
        return Forked(line, [read for read, _ in pipes])

    def begin(
        self, *words: object, cwd: Path, environ: dict[str, str], module: str = "lockstep", files: Sequence[int] = ()
    ) -> "subprocess.Popen[str]":
        """The same, as a `Popen` with two pipes. Descriptor LOCKSTEP_MEMORY, one of `files`, gets the number that it has there."""
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


@contextmanager
def serving(environ: dict[str, str], *modules: str) -> Iterator[Warm]:
    """One that lives as long as the block, and imports `modules` beforehand."""
    with tempfile.TemporaryDirectory(prefix="warm-") as folder:
        address = f"{folder}/socket"
        command = [sys.executable, "-m", "tests.warm", address, *modules]
        with subprocess.Popen(command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL) as process:
            try:
                while not Path(address).exists():
                    assert process.poll() is None
                    time.sleep(0.01)
                yield Warm(address, environ)
            finally:
                process.kill()


def become(
    files: Sequence[int],
    module: str,
    words: list[str],
    cwd: str,
    environ: dict[str, str],
    safe: bool = False,
    blocked: Sequence[int] = (),
) -> None:
    """Runs the program in this process. `safe` is Python's option -P; `blocked` are the signals that are held back at first."""
    os.setsid()
    os.chdir(cwd)
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    for place, file in enumerate(files):  # each of them is above its place
        os.dup2(file, place)
        os.close(file)
    sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace")
    base = dict(os.environ)
    os.environ.clear()
    os.environ.update(environ)
    if "LOCKSTEP_PARENT" in environ:  # with which a rank ends
        os.environ["LOCKSTEP_PARENT"] = str(os.getppid())
    if SERVERS in environ:
        fork_ranks(base)
    sys.argv[1:] = words
    sys.path[:1] = [] if safe else [cwd]
    if module.startswith("tests."):
        sys.path.append(str(ROOT))
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def answer(line: socket.socket, address: str) -> bool:
    """Does what is asked on a connection. True in the new program, once that has ended without exiting."""
    content, files, *_ = socket.recv_fds(line, _PIECE, 16)
    while not content.endswith(b"\n"):
        content += line.recv(_PIECE)
    asked, parent = json.loads(content), os.getpid()
    child = os.fork()
    if child == 0:
        line.close()
        die_with_parent(parent)
        words_of(address, os.getpid()).write_text("\0".join(asked["words"]))
        become(files, **asked)
        return True
    for file in files:
        os.close(file)
    line.sendall(f"{child}\n".encode())
    Thread(target=end_with, args=(line,), daemon=True).start()
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    words_of(address, child).unlink(missing_ok=True)
    with suppress(OSError):
        line.sendall(f"{code}\n".encode())
    os._exit(0)


def end_with(line: socket.socket) -> None:
    """Ends this process, and with it the program, when the other side closes the connection or has ended."""
    with suppress(OSError):
        line.recv(1)
    os._exit(1)


def words_of(address: str, process: int) -> Path:
    """The file with the words of a forked program, whose command line is that of the server."""
    return Path(f"{address}.{process}")


def main(address: str, *modules: str) -> None:
    """Listens."""
    die_with_parent(os.getppid())
    for module in modules:
        import_module(module)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{address}.new")
        listener.listen()
        Path(f"{address}.new").rename(address)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            line, _ = listener.accept()
            with line:
                if os.fork() == 0:
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    listener.close()
                    if answer(line, address):
                        return


if __name__ == "__main__":
    main(*sys.argv[1:])

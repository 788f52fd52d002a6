"""`subprocess.Popen` for programs that a server of tests/warm.py forks, which saves the import of PyTorch, about 2 s each."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lockstep.processes.portable import portable_environment

__all__ = [
    "FIRST",
    "IMPORT_TORCH",
    "PLAIN",
    "PORTABLE_SERVER",
    "SERVERS",
    "ForkedPopen",
    "fork_ranks",
    "request",
    "suits",
]

SERVERS = "LOCKSTEP_TEST_SERVERS"
"""Environment variable with the addresses of the servers that fork ranks: the first forks rank 0, the second rank 1, and so on in turn."""
PORTABLE_SERVER = "LOCKSTEP_TEST_PORTABLE_SERVER"
"""Environment variable with the address of the server that forks ranks with `runtime.bits: portable`, whose variables it has from its start."""
PLAIN = (
    *("COLUMNS", "LINES", "PWD", "OLDPWD", "FORCE_COLOR", "NO_COLOR", "TERM", "PET_STANDALONE"),
    *(
        "KMP_DUPLICATE_LIB_OK",
        "PYGAME_HIDE_SUPPORT_PROMPT",
        "RAY_CLIENT_MODE",
        "SDL_AUDIODRIVER",
        "TORCH_CPP_LOG_LEVEL",
    ),
)
"""Variables that do not affect imports, or that modules set themselves. The same holds for variables of lockstep and of pytest."""
LATE = (
    *(
        "HOME",
        "PATH",
        "TMPDIR",
        "NETRC",
        "MPLBACKEND",
        "MPLCONFIGDIR",
        "MUJOCO_GL",
        "PYOPENGL_PLATFORM",
        "SDL_VIDEODRIVER",
        "TRACKIO_DIR",
    ),
    *("CUBLAS_WORKSPACE_CONFIG", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TORCHINDUCTOR_CACHE_DIR"),
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("IPYTHONDIR", "JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", "PYTHONUNBUFFERED", "SLURM_CONF"),
)
"""Variables that are read when they are used, or by packages that a server does not import; the same holds for those of W&B, of the Hub and
of S3.
"""
IMPORT_TORCH = ("rank", "evaluator", "video", "train", "resume")
"""Commands that training, sweeps and benchmarks start and that import PyTorch."""
STEPPING = "lockstep.bench.stepping"
"""Module that benchmarks and `lockstep check` start."""
FIRST = 3
"""First file descriptor above stdin, stdout and stderr."""


def suits(environ: dict[str, str], base: dict[str, str]) -> bool:
    """Return True if a program with this environment imports the same modules as one with the environment `base`."""
    hashes = {"PYTHONHASHSEED": "random"}  # the default
    differ = {name for name, _ in (hashes | environ).items() ^ (hashes | base).items()}
    return all(
        name in PLAIN + LATE or name.startswith(("LOCKSTEP_", "WANDB_", "HF_", "AWS_", "PYTEST_")) for name in differ
    )


def request(address: str, task: dict[str, Any], files: Sequence[int]) -> socket.socket:
    """Ask the server to fork. It answers with two lines: the process id, then the exit code. It kills the process when the socket is closed."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(address)
    socket.send_fds(connection, [f"{json.dumps(task)}\n".encode()], list(files))
    return connection


_DESCRIPTORS = {"LOCKSTEP_MEMORY": "", "LOCKSTEP_RENDEZVOUS": "fd://"}
"""Variables that hold the number of a descriptor, and the text before it."""


class ForkedPopen(subprocess.Popen[Any]):
    """`python [-P] -m MODULE WORDS …`, forked by the server at the address `server`, or started as usual if it is None.

    The process has its own session. Descriptors of `pass_fds` become 3, 4, …, and the variables of _DESCRIPTORS are changed accordingly.
    """

    def __init__(self, args: Sequence[str], *positional: Any, server: str | None = None, **options: Any) -> None:
        self._server = server
        super().__init__(args, *positional, **options)

    def _execute_child(self, args: Any, executable: Any, *others: Any) -> None:
        if self._server is None:
            super()._execute_child(args, executable, *others)
            return
        _, _, pass_fds, cwd, env, _, _, _, *pipes = others
        child_ends = (pipes[0], pipes[3], pipes[5])
        words = list(args[1:])
        safe = words[0] == "-P"
        module, *words = words[1 + safe :]
        environ = dict(os.environ if env is None else env)
        for name, prefix in _DESCRIPTORS.items():
            if pass_fds and name in environ and environ[name].startswith(prefix):
                number = int(environ[name].removeprefix(prefix))
                environ[name] = f"{prefix}{FIRST + list(pass_fds).index(number)}"
        blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
        task = {"module": module, "words": words, "cwd": str(Path(cwd or "").absolute()), "environ": environ}
        descriptors = [end if end >= 0 else place for place, end in enumerate(child_ends)]
        self._connection = request(self._server, task | {"safe": safe, "blocked": blocked}, [*descriptors, *pass_fds])
        self._answers = self._connection.makefile()
        self.pid = int(self._answers.readline())
        self._child_created = True
        self._close_pipe_fds(*pipes[:6])

    def _ended(self, timeout: float | None) -> bool:
        """Wait at most `timeout` seconds for the end of the process, and set its exit code. Return True if it has ended."""
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = int(self._answers.readline() or -signal.SIGKILL)
            self._answers.close()
            self._connection.close()
        return self.returncode is not None

    def _internal_poll(self, *arguments: Any, **options: Any) -> int | None:
        if self._server is None:
            return super()._internal_poll(*arguments, **options)
        self._ended(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._server is None:
            return super()._wait(timeout)
        if not self._ended(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self.returncode


def fork_ranks(base: dict[str, str]) -> None:
    """Replace `subprocess.Popen`, so that this process has ranks and its sidecars forked. `base` is the environment of the servers."""

    class Popen(ForkedPopen):
        def __init__(self, args: Sequence[str], *positional: Any, **options: Any) -> None:
            environ, server = options.get("env"), None
            if environ and list(args[:1]) == [sys.executable] and "-m" in args:
                module, word, *_ = [*args[args.index("-m") + 1 :], ""]
                if module == STEPPING or (module == "lockstep" and word in IMPORT_TORCH):
                    server = server_for(environ)
            super().__init__(args, *positional, server=server, **options)

    def server_for(environ: dict[str, str]) -> str | None:
        """Return the address of the server that has this environment; None if there is none, or if it names no servers."""
        if SERVERS not in environ:
            return None
        if suits(imports(environ), base):
            servers = environ[SERVERS].split(os.pathsep)
            return servers[int(environ.get("LOCKSTEP_RANK", 0)) % len(servers)]
        if suits(imports(environ), portable_environment(base)):
            return environ.get(PORTABLE_SERVER)
        return None

    def imports(environ: dict[str, str]) -> dict[str, str]:
        """Return `environ` with the PYTHONPATH of the servers, if a program that has it imports from the same folders as this process."""
        path, folders = environ.get("PYTHONPATH"), os.pathsep.join(folder or os.getcwd() for folder in sys.path)  # noqa: PTH109
        same = path in (None, folders, os.environ.get("PYTHONPATH"))
        return environ | ({"PYTHONPATH": base["PYTHONPATH"]} if same else {})

    subprocess.Popen = Popen  # type: ignore[assignment, misc]

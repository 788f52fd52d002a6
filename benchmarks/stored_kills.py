"""Kills of a run in object storage before and after any write: a part of the benchmark of faults.

The server of S3 is a local one. It kills all processes of the run at a write that is chosen at random.
"""

import os
import random
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from logging import ERROR, getLogger
from pathlib import Path
from threading import Thread
from typing import Any

from fault_runs import Case, environ, wait_until
from random_kills import EVERY, LONG, Figures, check, reference
from tests.live_runs import processes_with
from tests.warm import serving

from lockstep.store.fetch import fetch_named, is_stored
from lockstep.store.remote import RemoteRun

__all__ = ["kill_stored"]

STORE = "s3://bucket/runs"
FARTHEST = 40
"""The largest number of writes from the start of a command to its end by a kill: those of several checkpoints."""
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
COUNTED = ("whole checkpoints seen", "broken checkpoints", "kills with lost or doubled metrics")


class Killer:
    """WSGI application that passes requests on to another one, and calls `kill` before or after the n-th write."""

    def __init__(self, application: Callable[..., Iterable[bytes]]) -> None:
        self._application = application
        self._left, self._after = 0, False
        self._kill: Callable[[], None] = lambda: None

    def arm(self, writes: int, after: bool, kill: Callable[[], None]) -> None:
        """Call `kill` once, at the write with this number from now on; `after`: when the server has carried it out."""
        self._left, self._after, self._kill = writes, after, kill

    def disarm(self) -> None:
        """Do not kill any more."""
        self._left = 0

    def __call__(self, variables: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        """Answer a request."""
        if variables["REQUEST_METHOD"] not in ("PUT", "POST", "DELETE") or not self._left:
            return self._application(variables, start)
        self._left -= 1
        last = self._left == 0
        if last and not self._after:
            self._kill()
        answer = self._application(variables, start)
        if last and self._after:
            self._kill()
        return answer


@contextmanager
def storage() -> Iterator[Killer]:
    """Start a server of S3 with an empty bucket, and set the variables with which its clients find it."""
    import boto3
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    getLogger("werkzeug").setLevel(ERROR)  # it logs every request
    killer = Killer(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, killer, threaded=True)
    Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"}
    boto3.client("s3").create_bucket(Bucket="bucket")
    yield killer
    server.shutdown()


def kill_stored(folder: Path, kills: int) -> Figures:
    """Kill all processes of runs before or after any write to the storage, check what is stored, and repeat the command.

    Every second time the run folder is removed, as if the machine were lost.
    """
    generator, expected = random.Random(4), reference(folder, LONG)
    counts: Figures = dict.fromkeys(("kills", "of these before anything was stored", "runs", *COUNTED), 0)
    counts |= dict.fromkeys(("newest checkpoints that were lost", "different final digests"), 0)
    with storage() as killer, serving(environ(), "lockstep.cli.train_rank", "lockstep.api") as server:
        while counts["kills"] < kills:
            counts["runs"] += 1
            words = ("--ranks", "2", "--restarts", "0", "--resume", "--run.store", STORE)
            case = Case(folder, f"stored-{counts['runs']}", *EVERY, *words, iterations=LONG)
            newest = 0
            while counts["kills"] < kills:
                process = case.start(server=server.address)
                killer.arm(generator.randint(1, FARTHEST), generator.random() < 0.5, lambda: kill_all(case, process))  # noqa: B023
                if process.wait(300) == 0:
                    break
                wait_until(lambda: not processes_with(str(case.run)), 20)  # noqa: B023
                counts["kills"] += 1
                stored = check_storage(case, counts)
                counts["newest checkpoints that were lost"] += stored < newest
                newest = stored
                if generator.random() < 0.5:
                    shutil.rmtree(case.run, ignore_errors=True)
            killer.disarm()
            ended = case.digest() or (case.start(server=server.address).wait(300) == 0 and case.digest())
            counts["different final digests"] += ended != expected
            shutil.rmtree(case.run, ignore_errors=True)
            print(counts, flush=True)
    return counts


def kill_all(case: Case, launcher: "subprocess.Popen[str]") -> None:
    """Kill the launcher, the ranks and the process that copies the run."""
    for number in (launcher.pid, *processes_with(str(case.run))):
        with suppress(ProcessLookupError):
            os.kill(number, signal.SIGKILL)


def check_storage(case: Case, counts: Figures) -> int:
    """Download what is stored, and count its whole and broken checkpoints. Return the iteration of the newest one."""
    name = case.run.name
    if not is_stored(RemoteRun(STORE, name)):
        counts["of these before anything was stored"] += 1
        return 0
    fetched = fetch_named(f"{STORE}/{name}", case.folder / "fetched")
    try:
        check(fetched, counts)
        return max((int(path.name) for path in (fetched / "checkpoints").glob("[0-9]*")), default=0)
    finally:
        shutil.rmtree(fetched)

"""Our own launch: N ranks on this host, that end together.

Ranks meet in memory that is inherited, so that nothing listens on a port. (torchrun's store listens on every interface.)
They die with this process, also when it is killed, and this process ends them all when one fails.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from types import FrameType

from lockstep.group.memory import create_memory
from lockstep.processes.parent import own_command, own_environment
from lockstep.run.stop import SIGNALS, note
from lockstep.runtime.checks import shares_memory
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["launch"]

_GRACE = 5.0
"""Seconds that the other ranks have to end by themselves after one has failed."""
_PATIENCE = 90.0
"""The same, after one has ended well: rank 0 may wait for films and trackers (`run.run`)."""
_STALLED = 4
_LOST = 4
_KNOWN = (0, 1, 2, 3, 4, 5, 75, 130, 137, 141)
"""Exit codes that docs/troubleshooting.md lists, and 141 for a closed pipe; a rank with any other was ended by foreign code, such as `os._exit`."""


def launch(command: Sequence[str], ranks: int, config: RuntimeConfig) -> int:
    """Runs `command` (words after `python -m lockstep`) as `ranks` processes, and returns the first exit code that is not 0.

    Each finds its place in the environment: LOCKSTEP_RANK, LOCKSTEP_SIZE, LOCKSTEP_PARENT, LOCKSTEP_MEETING (where they meet, if
    they need torch.distributed), LOCKSTEP_PATH (where this process looks for modules) and, where they share memory, LOCKSTEP_MEMORY (its file descriptor).
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        memory = _memory(ranks, config)
        shared = {} if memory is None else {"LOCKSTEP_MEMORY": str(memory)}
        common = {
            **own_environment(),
            "LOCKSTEP_SIZE": str(ranks),
            "LOCKSTEP_MEETING": f"file://{folder}/meeting",
            **shared,
        }
        # what comes before a rank listens, or before we pass it on, waits until then
        held = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        processes = [
            subprocess.Popen(
                own_command(*command),
                env={**common, "LOCKSTEP_RANK": str(rank)},
                pass_fds=() if memory is None else (memory,),
                start_new_session=True,  # a terminal's Ctrl-C reaches only us, and we pass it on once
            )
            for rank in range(ranks)
        ]
        if memory is not None:
            os.close(memory)
        return _supervise(processes, held)


def _memory(ranks: int, config: RuntimeConfig) -> int | None:
    if not shares_memory(config):
        return None
    try:
        return create_memory(ranks)
    except OSError:
        if config.backend == "shared":
            raise ValueError(
                "runtime.backend is 'shared': this system has no anonymous shared memory; use 'gloo'"
            ) from None
        return None


def _supervise(processes: Sequence["subprocess.Popen[bytes]"], held: set[int]) -> int:
    """`held` are the signals that were held back before the launch began."""

    def pass_on(number: int, frame: FrameType | None) -> None:
        note(number)
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in SIGNALS}
    signal.pthread_sigmask(signal.SIG_SETMASK, held)
    try:
        return _wait(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _wait(processes: Sequence["subprocess.Popen[bytes]"]) -> int:
    """Waits for all. Once one has ended, the others have some seconds to follow: what keeps them longer is a fault."""
    code, deadline = 0, float("inf")
    while True:
        codes = [process.poll() for process in processes]
        ended = [found for found in codes if found is not None]
        if not code and any(ended):
            rank, code = next((rank, found) for rank, found in enumerate(codes) if found)
            deadline = time.monotonic() + _GRACE
            if code < 0:
                print(f"lockstep: rank {rank} was killed by {signal.Signals(-code).name}", file=sys.stderr, flush=True)
                code = 1
            elif code not in _KNOWN:
                print(f"lockstep: rank {rank} ended with exit code {code}", file=sys.stderr, flush=True)
                code = _LOST
        elif ended and deadline == float("inf"):
            deadline = time.monotonic() + _PATIENCE
        if len(ended) == len(codes):
            return code
        if time.monotonic() > deadline:
            return code or _STALLED
        time.sleep(0.02)

"""The launcher of `lockstep train --ranks N`: it starts N ranks on this host, which end together.

Ranks communicate through memory that they inherit, so nothing listens on a port. (torchrun's store listens on every interface.)
The ranks end with this process, even if it is killed, and this process ends all ranks if one fails.
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
from lockstep.processes import exit_codes
from lockstep.processes.parent import own_command, own_environment
from lockstep.run.stop import SIGNALS, record_signal
from lockstep.runtime.checks import shares_memory
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["launch"]

_GRACE_AFTER_FAILURE = 5.0
"""Seconds that the other ranks have to end by themselves after one has failed."""
_GRACE_AFTER_SUCCESS = 90.0
"""Seconds that the other ranks have after one has ended with code 0. If only rank 0 is left, there is no limit here: it
waits for evaluations, videos and trackers, with limits of its own (`telemetry.recorder`)."""


def launch(command: Sequence[str], ranks: int, config: RuntimeConfig) -> int:
    """Run `command`, the arguments after `python -m lockstep`, as `ranks` processes. Return the first exit code that is
    not 0.

    Every process gets these environment variables: LOCKSTEP_RANK, LOCKSTEP_SIZE, LOCKSTEP_PARENT (this process's id),
    LOCKSTEP_RENDEZVOUS (address of the rendezvous, if the ranks need torch.distributed), LOCKSTEP_PATH (module search path
    of this process) and, if the ranks share memory, LOCKSTEP_MEMORY (the file descriptor of the memory). Raises
    ValueError if `runtime.backend` is shared and the system has no anonymous shared memory.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        memory = _create_memory(ranks, config)
        memory_variable = {} if memory is None else {"LOCKSTEP_MEMORY": str(memory)}
        environment = {
            **own_environment(),
            "LOCKSTEP_SIZE": str(ranks),
            "LOCKSTEP_RENDEZVOUS": f"file://{folder}/meeting",
            **memory_variable,
        }
        # signals stay pending until the ranks have their handlers, and until this process forwards signals to them
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        processes = [
            subprocess.Popen(
                own_command(*command),
                env={**environment, "LOCKSTEP_RANK": str(rank)},
                pass_fds=() if memory is None else (memory,),
                start_new_session=True,  # a terminal's Ctrl-C reaches only this process, which forwards it once
            )
            for rank in range(ranks)
        ]
        if memory is not None:
            os.close(memory)
        return _supervise(processes, previous_mask)


def _create_memory(ranks: int, config: RuntimeConfig) -> int | None:
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


def _supervise(processes: Sequence["subprocess.Popen[bytes]"], previous_mask: set[int]) -> int:
    """Forward signals to the ranks, and wait until the ranks have ended. Return the exit code of `_wait`.

    `previous_mask` is the signal mask before the launch blocked signals.
    """

    def forward(number: int, frame: FrameType | None) -> None:
        record_signal(number)
        for process in processes:
            if process.poll() is None:
                process.send_signal(number)

    previous_handlers = {number: signal.signal(number, forward) for number in SIGNALS}
    signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
    try:
        return _wait(processes)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for number, handler in previous_handlers.items():
            signal.signal(number, handler)


def _wait(processes: Sequence["subprocess.Popen[bytes]"]) -> int:
    """Return the first exit code of the ranks that is not 0.

    Ranks that run much longer than the first one that ended are considered hung: the caller kills them.
    """
    first_failure, deadline = exit_codes.DONE, float("inf")
    while True:
        codes = [process.poll() for process in processes]
        ended = [code for code in codes if code is not None]
        if not first_failure and any(ended):
            failures = [(rank, code) for rank, code in enumerate(codes) if code]
            # if several have failed since the last poll, a rank that lost another one is the consequence, not the cause
            rank, first_failure = min(failures, key=lambda failure: failure[1] == exit_codes.RANK_LOST)
            deadline = time.monotonic() + _GRACE_AFTER_FAILURE
            if first_failure < 0:
                name = signal.Signals(-first_failure).name
                print(f"lockstep: rank {rank} was killed by {name}", file=sys.stderr, flush=True)
                first_failure = exit_codes.FAILED
            elif first_failure not in exit_codes.KNOWN:
                print(f"lockstep: rank {rank} ended with exit code {first_failure}", file=sys.stderr, flush=True)
                first_failure = exit_codes.RANK_LOST
        elif not first_failure and None not in codes[1:]:  # only rank 0 is left
            deadline = float("inf")
        elif ended and deadline == float("inf"):
            deadline = time.monotonic() + _GRACE_AFTER_SUCCESS
        if len(ended) == len(codes):
            return first_failure
        if time.monotonic() > deadline:
            return first_failure or exit_codes.RANK_LOST
        time.sleep(0.02)

"""The launcher of `lockstep train --ranks N`: it starts N ranks on this host, which end together.

Ranks communicate through memory that they inherit, so nothing listens on a port. (torchrun's store listens on every interface.)
The ranks end with this process, even if it is killed, and this process ends all ranks if one fails.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from lockstep.group.memory import create_memory
from lockstep.processes.heartbeat import Lines
from lockstep.processes.parent import own_command, own_environment
from lockstep.processes.signals import heeded_signals
from lockstep.runtime.rendezvous import unique_folder
from lockstep.runtime.settings import RuntimeConfig
from lockstep.runtime.watch import Outcome, watch

__all__ = ["launch"]


def launch(command: Sequence[str], ranks: int, config: RuntimeConfig) -> Outcome:
    """Run `command`, the arguments after `python -m lockstep`, as `ranks` processes, and return how they have ended.

    Every process gets these environment variables: LOCKSTEP_RANK, LOCKSTEP_SIZE, LOCKSTEP_PARENT (this process's id),
    LOCKSTEP_RENDEZVOUS (address of the rendezvous, if the ranks need torch.distributed), LOCKSTEP_PATH (module search path
    of this process) and, if the system has it, LOCKSTEP_MEMORY (the file descriptor of memory that all share). Raises
    ValueError if `runtime.backend` is shared and the system has no anonymous shared memory, and OSError if a process can't be started.
    """
    folder = unique_folder()
    try:
        memory = _create_memory(ranks, config)
        lines = None if memory is None else Lines(memory, ranks)
        # signals stay pending until the ranks have their handlers, and until this process forwards signals to them
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, heeded_signals())
        try:
            processes = _start(command, ranks, memory, folder)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
            raise
        finally:
            if memory is not None:
                os.close(memory)
        return watch(processes, lines, config.timeout, previous_mask)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(command: Sequence[str], ranks: int, memory: int | None, folder: Path) -> "list[subprocess.Popen[bytes]]":
    """Start the processes, or none: raises OSError if one can't be started."""
    memory_variable = {} if memory is None else {"LOCKSTEP_MEMORY": str(memory)}
    rendezvous = {"LOCKSTEP_SIZE": str(ranks), "LOCKSTEP_RENDEZVOUS": f"file://{folder}/meeting"}
    environment = {**own_environment(), **rendezvous, **memory_variable}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            process = subprocess.Popen(
                own_command(*command),
                env={**environment, "LOCKSTEP_RANK": str(rank)},
                pass_fds=() if memory is None else (memory,),
                start_new_session=True,  # a terminal's Ctrl-C reaches only the launcher, which forwards it once
            )
            processes.append(process)
    except OSError:
        for process in processes:
            process.kill()
            process.wait()
        raise
    return processes


def _create_memory(ranks: int, config: RuntimeConfig) -> int | None:
    try:
        return create_memory(ranks)
    except OSError:
        if config.backend == "shared":
            raise ValueError(
                "runtime.backend is 'shared': this system has no anonymous shared memory; use 'gloo'"
            ) from None
        return None

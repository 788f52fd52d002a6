"""The launcher of `lockstep train --ranks N`: it starts N ranks on this host, and ends all of them if one fails.

Ranks communicate through memory that they inherit, so nothing listens on a port. (torchrun's store listens on every interface.)
The ranks end with this process, even if it is killed, and this process ends all ranks if one fails.
"""

import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.group.memory import create_memory
from lockstep.processes.heartbeat import Heartbeats
from lockstep.processes.parent import own_command, own_environment
from lockstep.processes.portable import portable_environment
from lockstep.processes.signals import handled_signals
from lockstep.runtime.rendezvous import INHERITED, unique_folder
from lockstep.runtime.settings import RuntimeConfig
from lockstep.runtime.watch import Outcome, watch

__all__ = ["RanksNotStarted", "launch"]


class RanksNotStarted(OSError):
    """The system can't start the process of a rank."""


def launch(command: Sequence[str], ranks: int, config: RuntimeConfig) -> Outcome:
    """Run `command`, the arguments after `python -m lockstep`, as `ranks` processes, and return how they have ended.

    Every process gets these environment variables: LOCKSTEP_RANK, LOCKSTEP_SIZE, LOCKSTEP_PARENT (this process's id),
    LOCKSTEP_RENDEZVOUS and LOCKSTEP_SECRET (address of the rendezvous and secret of the run, if the ranks need torch.distributed),
    LOCKSTEP_PATH (module search path of this process) and, if the system has it, LOCKSTEP_MEMORY (the file descriptor of memory that all share). Raises
    ValueError if `runtime.backend` is shared and the system has no anonymous shared memory, and RanksNotStarted if a process can't be started.
    """
    folder = unique_folder()
    try:
        files = _create_files(ranks, config)
        # signals stay pending until the ranks have their handlers, and until this process forwards signals to them
        previous_mask = signal.pthread_sigmask(signal.SIG_BLOCK, handled_signals())
        try:
            heartbeats = Heartbeats(files[0], ranks) if files else None
            environment = own_environment()
            if config.bits == "portable":
                environment = portable_environment(environment)
            processes = _start(command, ranks, files, folder, environment)
        except OSError:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous_mask)
            raise
        finally:
            for file in files:
                os.close(file)
        return watch(processes, heartbeats, config.timeout, previous_mask)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(
    command: Sequence[str], ranks: int, files: Sequence[int], folder: Path, environment: Mapping[str, str]
) -> "list[subprocess.Popen[bytes]]":
    """Start all ranks with the variables of `environment` and their own. If one can't be started, kill the others and raise RanksNotStarted.

    `files` are those of `_create_files`.
    """
    rank_variables = {"LOCKSTEP_SIZE": str(ranks), "LOCKSTEP_RENDEZVOUS": f"file://{folder}/rendezvous"}
    rank_variables["LOCKSTEP_SECRET"] = secrets.token_hex(16)
    if files:
        memory, store = files
        rank_variables |= {"LOCKSTEP_MEMORY": str(memory), "LOCKSTEP_RENDEZVOUS": f"{INHERITED}{store}"}
    environment = {**environment, **rank_variables}
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for rank in range(ranks):
            process = subprocess.Popen(
                own_command(*command),
                env={**environment, "LOCKSTEP_RANK": str(rank)},
                pass_fds=files,
                start_new_session=True,  # a terminal's Ctrl-C reaches only the launcher, which forwards it once
            )
            processes.append(process)
    except OSError as error:
        for process in processes:
            process.kill()
            process.wait()
        raise RanksNotStarted(*error.args) from None
    return processes


def _create_files(ranks: int, config: RuntimeConfig) -> list[int]:
    """Create anonymous files, which need no removal: the memory of the ranks, and the store of torch.distributed.

    Return their descriptors; none if the system has no such files.
    """
    try:
        return [create_memory(ranks), create_memory(0)]
    except OSError:
        if config.backend == "shared":
            raise ValueError(
                "runtime.backend is 'shared': this system has no anonymous shared memory; use 'gloo'"
            ) from None
        return []

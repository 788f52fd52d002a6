"""`lockstep rank [--hook HOOK] RESTARTS FOLDER ITERATION [MODULE …]`: one rank of a run that lockstep itself has launched.

An internal command.
"""

import faulthandler
import os
from collections.abc import Sequence
from pathlib import Path

from lockstep.processes import heartbeat
from lockstep.processes.exit_codes import FAILED
from lockstep.processes.parent import add_parent_path, die_with_parent
from lockstep.processes.signals import STACKS_SIGNAL
from lockstep.run.stop import listen

__all__ = ["main"]


def main(argv: Sequence[str]) -> int:
    """Train as one rank, which LOCKSTEP_* environment variables describe, and return the exit code."""
    environment = os.environ
    die_with_parent(int(environment["LOCKSTEP_PARENT"]))
    rank, size = int(environment["LOCKSTEP_RANK"]), int(environment["LOCKSTEP_SIZE"])
    faulthandler.enable(2)
    faulthandler.register(STACKS_SIGNAL, 2)  # the handler is written in C: it also runs when Python code can't
    memory = int(environment["LOCKSTEP_MEMORY"]) if "LOCKSTEP_MEMORY" in environment else None
    if memory is not None:
        heartbeat.attach(heartbeat.Heartbeats(memory, size).cells_of(rank), watched=True)
    listen(announce=rank == 0)
    try:
        return _train(argv, rank, size, memory)
    except Exception:  # the error is this program's or the user's; foreign code would have ended the process
        heartbeat.set_exit_code(FAILED)
        raise


def _train(argv: Sequence[str], rank: int, size: int, memory: int | None) -> int:
    # These imports take seconds, in which the parent may be killed or a signal may arrive: they follow the calls above.
    from lockstep.cli.train_rank import train_rank
    from lockstep.envs.functions import import_reference
    from lockstep.experiment.hooks import import_hook
    from lockstep.run.folder import RunFolder
    from lockstep.runtime.rank_info import RankInfo
    from lockstep.runtime.rendezvous import own_secret

    rendezvous = os.environ.get("LOCKSTEP_RENDEZVOUS", "")
    secret = own_secret(os.environ)
    rank_info = RankInfo(rank, size, rank, size, memory=memory, rendezvous=rendezvous, secret=secret)
    add_parent_path()
    hook, (restarts, folder, iteration, *modules) = (argv[1], argv[2:]) if argv[0] == "--hook" else (None, argv)
    for module in modules:
        import_reference(module)
    start = RunFolder(Path(folder)), int(iteration), None if rank else import_hook(hook)
    return train_rank(rank_info, *start, int(restarts))

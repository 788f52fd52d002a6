"""Exit codes of the command `lockstep` and of ranks. docs/troubleshooting.md lists what to do for each."""

__all__ = [
    "BAD_INPUT",
    "DONE",
    "FAILED",
    "INTERRUPTED",
    "IN_USE",
    "KILLED",
    "KNOWN",
    "NON_FINITE",
    "PIPE_CLOSED",
    "RANK_LOST",
    "REPLICAS_DIFFER",
    "REPRODUCIBLE",
    "STOPPED_BY_SIGNAL",
]

DONE = 0
"""Success."""
FAILED = 1
"""Any other error, such as one in an environment or of the compiler, or a rank that a signal killed."""
BAD_INPUT = 2
"""Wrong usage, or a config that can't run here."""
NON_FINITE = 3
"""A loss, a gradient, a weight or a value from the environment is NaN or infinite."""
RANK_LOST = 4
"""A rank lost another one or the process of an environment, was ended by code outside of lockstep, or hung."""
REPLICAS_DIFFER = 5
"""Ranks hold different weights."""
REPRODUCIBLE = (BAD_INPUT, NON_FINITE, REPLICAS_DIFFER)
"""Exit codes after which clusters do not start the run again, because the same error would occur. `IN_USE` is not included: a network file system may
hold the lock of a host that was lost for some time."""
IN_USE = 6
"""Another process trains the run."""
STOPPED_BY_SIGNAL = 75
"""A signal asked the run to stop, and it stopped. (EX_TEMPFAIL of sysexits.h: the run can be resumed.)"""
INTERRUPTED = 130
"""Ctrl-C before training began, or a second one: 128 + SIGINT."""
KILLED = 137
"""Killed from outside, as shells report it: 128 + SIGKILL."""
PIPE_CLOSED = 141
"""The reader of the output has ended: 128 + SIGPIPE."""

KNOWN = (
    *(DONE, FAILED, BAD_INPUT, NON_FINITE, RANK_LOST, REPLICAS_DIFFER, IN_USE),
    *(STOPPED_BY_SIGNAL, INTERRUPTED, KILLED, PIPE_CLOSED),
)
"""All exit codes above. A rank with another exit code was ended by code outside of lockstep, for example by `os._exit` in an environment."""

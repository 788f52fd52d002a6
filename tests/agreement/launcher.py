"""Launcher of ranks for test_runtimes.py: `launcher.py VARIABLES SIZE WORD …` runs `lockstep WORD …` on SIZE ranks.

VARIABLES are the environment variables that a launcher sets, such as `RANK={rank} WORLD_SIZE={size}`. The ranks are forked from this
process, so they share a parent, as those of launchers do.
"""

import os
import runpy
import sys


def fork_rank(variables: str, words: list[str]) -> int:
    """Fork a rank and return its process id."""
    process = os.fork()
    if process == 0:
        os.environ.update(pair.split("=", 1) for pair in variables.split())
        sys.argv[1:] = words
        runpy.run_module("lockstep", run_name="__main__", alter_sys=True)
    return process


if __name__ == "__main__":
    variables, size, *words = sys.argv[1:]
    ranks = [fork_rank(variables.format(rank=rank, size=size), words) for rank in range(int(size))]
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(rank, 0)[1]) for rank in ranks))

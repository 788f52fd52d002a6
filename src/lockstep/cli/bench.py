"""`lockstep bench`: measure how fast experiments train on this machine, and predict how fast they train on others."""

from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from lockstep.cli.benchmarks import print_line
from lockstep.processes.children import ProcessFailed
from lockstep.processes.exit_codes import BAD_INPUT, DONE, FAILED
from lockstep.runtime.rank_info import find_rank_info

__all__ = ["main"]

KINDS = {
    "throughput": "steps per second, and time by phase: one process, several, GPU",
    "scaling": "speed-up, efficiency and time to a target return on 1 to N ranks",
    "peers": "the same workload in lockstep and in other implementations of PPO",
    "simulate": "prediction for up to 4,096 ranks, from a finished run",
}


def main(argv: Sequence[str]) -> int:
    """Run a benchmark and print its table. Return the exit code. Raises ValueError for bad input."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return DONE if argv else BAD_INPUT
    kind = argv[0]
    if kind not in KINDS:
        close = get_close_matches(kind, KINDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(KINDS)}"
        raise ValueError(f"{kind}: unknown benchmark; {hint}")
    rank_info = find_rank_info()
    if rank_info is not None:
        raise ValueError(f"bench starts its own ranks: use it without {rank_info.launcher}, with --ranks")
    try:
        code = import_module(f"lockstep.cli.bench_{kind}").main(argv[1:])
        assert isinstance(code, int)
        return code
    except ProcessFailed as error:
        print_line(f"lockstep: {error}")
        return FAILED


def _help() -> str:
    kinds = "\n".join(f"  {kind:<12}{line}" for kind, line in KINDS.items())
    return f"usage: lockstep bench KIND …\n\nMeasures the training speed on this machine, or predicts it for others.\n\n{kinds}\n\n`lockstep bench KIND --help` shows the options."

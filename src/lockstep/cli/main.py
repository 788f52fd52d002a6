"""The command `lockstep`: call the verb (the subcommand), and report errors in one line."""

import gc
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module

from lockstep import __version__
from lockstep.processes.exit_codes import BAD_INPUT, DONE, INTERRUPTED, PIPE_CLOSED

__all__ = ["main"]

VERBS = {
    "train": "train an agent: a preset, a config file, any field as a flag",
    "sweep": "train over seeds and values, or search among them; resumable",
    "resume": "go on with a run that was interrupted, on any number of ranks",
    "watch": "show how a run is going that was started elsewhere",
    "play": "see a run's agent act, in a window or as a video",
    "eval": "measure a run's agent on episodes that training never saw",
    "digest": "print the digest of a run's weights",
    "diff": "find the iteration where two runs part",
    "export": "write a run's policy as one file that runs without lockstep",
    "plot": "draw runs: learning curves, what the policy does, an episode, timing",
    "report": "write a run as one HTML file: outcome, video, curves, timing, config",
    "push": "share a run's agent on the Hugging Face Hub",
    "bench": "measure how fast experiments train here, beside others too",
    "presets": "list the ready experiments, or print one",
    "config": "print a preset, a file and flags as one config file",
    "envs": "list the environments",
    "doctor": "check what is installed here and what it allows",
}
_HIDDEN = ("rank", "film", "track", "evaluator")
_GC_THRESHOLD = 100_000
"""Number of new objects after which Python collects garbage. With the default, 700, collections take a tenth of the time of importing
PyTorch, although imported objects stay alive."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return the exit code: 0 done, 2 bad input, others as the verb defines.

    `argv` None means `sys.argv[1:]`.

    Unexpected exceptions are not caught.
    """
    gc.set_threshold(_GC_THRESHOLD)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" instead of ending the program
    try:
        code = _dispatch(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
    except (ValueError, RuntimeError) as error:
        code = _exit_code(error)
        for trace in getattr(error, "__notes__", ()):  # stack traces of the user's own code
            print(trace, file=sys.stderr)
        print(f"lockstep: {' '.join(str(error).split())}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        print("lockstep: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # otherwise Python's own flush at exit fails again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return code


def _exit_code(error: ValueError | RuntimeError) -> int:
    """Return the exit code of an error that has one; raise any other error again."""
    if isinstance(error, ValueError):
        return BAD_INPUT
    from lockstep.experiment.start import exit_codes

    code = exit_codes().get(type(error))
    if code is None:
        raise error
    return code


def _dispatch(words: list[str]) -> int:
    if not words or words[0] in ("-h", "--help", "help"):
        print(_help())
        return DONE if words else BAD_INPUT
    verb = words[0]
    if verb in ("-V", "--version", "version"):
        print(f"lockstep {__version__}")
        return DONE
    if verb not in VERBS and verb not in _HIDDEN:
        close = get_close_matches(verb, (*VERBS, "--help", "--version"), 1)
        raise ValueError(
            f"{verb}: unknown verb; " + (f"did you mean {close[0]}?" if close else f"there are {', '.join(VERBS)}")
        )
    code = import_module(f"lockstep.cli.{verb}").main(words[1:])
    assert isinstance(code, int)
    return code


def _help() -> str:
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {line}" for verb, line in VERBS.items())
    return (
        "usage: lockstep VERB …\n\nDistributed PPO: the same experiment gives the same policy, bit for bit, on any\n"
        f"number of processes.\n\n{verbs}\n\n"
        "lockstep VERB --help says more. To begin with: lockstep train cartpole"
    )

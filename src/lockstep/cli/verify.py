"""`lockstep verify`: train a run again, and compare the digests."""

import dataclasses
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lockstep.algorithm.plan import Plan
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.digest import digests
from lockstep.cli.start import import_env_module_of_run, start
from lockstep.config import Config
from lockstep.envs.functions import is_function
from lockstep.messages import counted
from lockstep.processes.exit_codes import DONE, FAILED, STOPPED_BY_SIGNAL
from lockstep.processes.portable import restart_portable
from lockstep.run.environment import packages, processor_type
from lockstep.run.folder import RunFolder
from lockstep.run.locate import locate
from lockstep.run.stop import listening
from lockstep.runtime.rank_info import find_rank_info
from lockstep.telemetry.attempts import Start, read_starts

__all__ = ["main"]

_LOCKSTEP = "lockstep-rl"


def main(argv: Sequence[str]) -> int:
    """Print whether this machine gives the recorded digests. Return 0 if it does, and 1 if an iteration differs.

    Raises ValueError, in one line, if the run can't be trained again here.
    """
    args = _parser().read(argv)
    if find_rank_info() is not None:
        raise ValueError("verify starts its ranks itself: call it without a launcher, with --ranks N")
    from lockstep.experiment.execute import create_run, open_run
    from lockstep.experiment.start import resolve_resume
    from lockstep.experiment.verification import HOOK, first_different_iteration, original_config, write_expected

    folder = RunFolder.open(locate(args.run))
    _check_faults(folder, args.iterations)
    config, starts, recorded = open_run(folder.path)[1], read_starts(folder), digests(folder)
    _check(folder, config, starts, recorded)
    if config.runtime.bits == "portable":
        restart_portable(["verify", *argv])  # this process may become the only rank
    import_env_module_of_run(config, args.module)
    config, last = original_config(config, starts, max(recorded))
    if args.iterations is not None and args.iterations > last:
        raise ValueError(f"--iterations is {args.iterations}: {_last_line(folder, last, max(recorded))}")
    expected = {number: recorded[number] for number in recorded if number <= (args.iterations or last)}
    ranks = args.ranks
    if ranks is None and starts and not (config.plan.exact and config.plan.gradients == "ordered"):
        ranks = starts[0].ranks  # these digests depend on the number
    # a signal is raised again after the folder is removed
    with listening(), tempfile.TemporaryDirectory(prefix="lockstep-verify-") as parent:
        resolved = resolve_resume(_quiet(config, parent), None, ranks)
        _announce(folder, starts, config.runtime.bits == "portable", resolved.plan, len(expected))
        temporary = create_run(resolved.config, None, resolved.ranks)
        write_expected(temporary.path, expected)
        with _stdout_discarded():
            code = start(temporary, [resolved.ranks], 0, HOOK, restarts=0)
        found = digests(temporary)
    first = first_different_iteration(expected, found)
    if first is None:
        print(f"identical: {counted(len(expected), 'iteration')} gave the recorded digests")
        return DONE
    if first not in found:  # an error, which was printed, or a signal
        print(f"iteration {first} was not trained; all earlier ones are equal", file=sys.stderr)
        return code if code != DONE else STOPPED_BY_SIGNAL
    print(f"iteration {first} differs: {expected[first]} is recorded, {found[first]} was computed here")
    return FAILED


def _check(folder: RunFolder, config: Config, starts: Sequence[Start], recorded: Mapping[int, str]) -> None:
    """Raise ValueError if the run has nothing to compare, or can't be trained again by this version or this command."""
    if not recorded:
        raise ValueError(f"{folder} has no iteration yet, so there is no digest to verify")
    if is_function(config.env.id):
        raise ValueError(
            f"env.id is {config.env.id!r}: a function of a program made the environments of {folder}; train again in that program, and "
            "compare with `lockstep diff`"
        )
    if config.plan.preempt is not None:
        raise ValueError(
            f"plan.preempt is {config.plan.preempt:g}: which steps were taken in {folder} depended on the speed of its ranks, so it can't be "
            "trained again"
        )
    made_by = {str(start.packages[_LOCKSTEP]) for start in starts if _LOCKSTEP in start.packages}
    here = packages().get(_LOCKSTEP)
    for version in made_by - {here}:
        raise ValueError(
            f"{folder} was trained by lockstep {version}, and this is {here}: pip install {_LOCKSTEP}=={version}"
        )


def _check_faults(folder: RunFolder, iterations: int | None) -> None:
    """Raise ValueError if an environment failed and was replaced in the first `iterations`; None: in any."""
    first = next((int(str(row["iteration"])) for row in folder.metrics() if row.get("env_faults")), None)
    if first is None or (iterations is not None and iterations < first):
        return
    earlier = f"; --iterations {first - 1} verifies those before" if first > 1 else ""
    raise ValueError(
        f"{folder} can't be trained again from its config: environments failed and were replaced from iteration {first} on "
        f"(env.on_fault){earlier}"
    )


def _last_line(folder: RunFolder, last: int, done: int) -> str:
    if last == done:
        return f"{folder} has {counted(done, 'iteration')}"
    return f"{folder} was extended with a larger --total-steps after iteration {last}, so no later one can be trained again from the start"


def _quiet(config: Config, parent: str) -> Config:
    """Return the config of a run in the folder `parent` that trains the same, without sidecar processes and output."""
    run = dataclasses.replace(
        config.run,
        folder=parent,
        name="run",
        loggers=(),
        capture_video=0,
        evaluate_every=None,
        hooks=None,
        store=None,
        progress="off",
    )
    return dataclasses.replace(config, run=run, runtime=dataclasses.replace(config.runtime, rendezvous=None))


def _announce(folder: RunFolder, starts: Sequence[Start], portable: bool, plan: Plan, count: int) -> None:
    """Print what is trained again, and how this machine differs from the one that trained the run."""
    print(f"training {counted(count, 'iteration')} of {folder} again, on {counted(plan.ranks, 'rank')}")
    here = {"processor": processor_type(portable), **packages()}
    differences: dict[str, None] = {}
    for one in starts:
        then = {"processor": one.processor or here["processor"], **one.packages}
        for name in {**then, **here}:
            if then.get(name) != here.get(name):
                differences[
                    f"{name}: {then.get(name, 'none')} when the run was trained, {here.get(name, 'none')} now"
                ] = None
    print("\n".join(differences or [f"same processor and versions: {here['processor']}"]), flush=True)


@contextmanager
def _stdout_discarded() -> Iterator[None]:
    """Discard what this process and its children print to the standard output: the result of the temporary run."""
    sys.stdout.flush()
    kept, discarded = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(discarded, 1)
    os.close(discarded)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _parser() -> Arguments:
    parser = Arguments(
        "verify",
        "Trains a run again in a temporary folder, and says whether this machine gives the recorded digests. The exit code is 0, or 1 if an "
        "iteration differs, which is printed. The run is not changed.",
    )
    parser.add_argument("run", metavar="RUN", help="run folder, or its name in runs/")
    parser.add_argument(
        "--iterations", type=whole_number(1), metavar="K", help="verify only the first K iterations (default: all)"
    )
    parser.add_argument(
        "--ranks",
        type=whole_number(1),
        metavar="N",
        help="number of processes on this host (default: one per core, at most one per shard, or the number that the plan requires)",
    )
    parser.add_argument("--env.module", dest="module", metavar="M", help="module that registers the environment")
    return parser

"""`lockstep bench peers`: compare the speed of lockstep with other implementations of PPO."""

import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial

from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.benchmarks import LEAST, add_json, add_repeats, print_line, resolve_config, write_json
from lockstep.config.compose import load
from lockstep.config.decode import encode
from lockstep.config.flags import parse_flags
from lockstep.messages import counted

__all__ = ["main"]

_ALLOWED_FIELDS = ("env.engine", "env.threads")


def main(argv: Sequence[str]) -> int:
    """Measure all implementations and print a table. Return the exit code. Raises ValueError for bad input."""
    parser = _parser()
    tree, rest = parse_flags(argv, parser.flags)
    args = parser.read(rest)
    _check_flags(tree)

    from lockstep.bench import comparison
    from lockstep.bench.repeats import interleave
    from lockstep.bench.workloads import ENVIRONMENTS, STEPS, WORKLOADS

    if args.work not in WORKLOADS:
        close = get_close_matches(args.work, WORKLOADS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(WORKLOADS)}"
        raise ValueError(f"--work is {args.work!r}: unknown workload; {hint}")
    work = WORKLOADS[args.work]
    updates = args.updates or work.updates
    flags, _ = parse_flags(work.flags())
    merged = {section: {**flags.get(section, {}), **tree.get(section, {})} for section in {**flags, **tree}}
    configs = [resolve_config(load(None, None, merged), ranks) for ranks in dict.fromkeys(args.ranks)]
    peers, missing = comparison.find_peers(args.python or [sys.executable], work)
    if not peers:
        packages = " ".join(peer.package for peer in missing)
        raise ValueError(
            f"none of the other libraries is installed: pip install {packages}, or name another interpreter with --python"
        )
    for peer in missing:
        print_line(
            f"{peer.name} is not installed here: pip install {peer.package}, or name another interpreter with --python"
        )
    runs: dict[str, Callable[[], comparison.ProgramTiming]] = {
        f"lockstep, {counted(ranks, 'rank')}": partial(comparison.time_lockstep, config, ranks, updates)
        for config, ranks in configs
    }
    for installed in peers:
        command = work.command(installed.peer, installed.interpreter, updates)
        runs[f"{installed.peer.name} {installed.version}"] = partial(comparison.time_program, command)

    def print_result(repeat: int, name: str, result: comparison.ProgramTiming) -> None:
        print_line(f"repeat {repeat + 1}/{args.repeats}  {name:<24}  {result.rate:>9,.0f} steps/s")

    finishes = interleave(runs, args.repeats, print_result)
    first = next(iter(runs))
    engines = " or ".join(dict.fromkeys(config.env.engine for config, _ in configs))
    kernels = "with kernels" if configs[0][0].runtime.compile == "on" else "without kernels"
    print(
        f"{work.env_id}: {ENVIRONMENTS} environments x {STEPS} steps; {work.epochs} epochs of {work.minibatches} minibatches"
    )
    print(f"lockstep: engine {engines}, {kernels}; others: environments one after the other\n")
    print("\n".join(comparison.table(finishes, first)))
    write_json(
        args,
        "peers",
        max(args.ranks),
        {"config": encode(configs[0][0]), "updates": updates, "runs": comparison.record(finishes, first)},
    )
    return 0


def _check_flags(tree: Mapping[str, Mapping[str, object]]) -> None:
    names = [f"{section}.{field}" for section, fields in tree.items() for field in fields]
    allowed = ("runtime.", "plan.")
    fixed = next((name for name in names if name not in _ALLOWED_FIELDS and not name.startswith(allowed)), None)
    if fixed:
        raise ValueError(
            f"--{fixed.replace('_', '-')}: the workload fixes this field; only plan, runtime, {', '.join(_ALLOWED_FIELDS)}"
        )


def _parser() -> Arguments:
    parser = Arguments(
        "bench peers",
        "Trains on the same work with lockstep and with Stable-Baselines3, sb3-contrib and skrl, where they are installed. "
        f"Takes the flags of plan and runtime, and --{_ALLOWED_FIELDS[0]} and --{_ALLOWED_FIELDS[1]}, as well.",
    )
    parser.add_argument(
        "--work",
        default="cartpole",
        metavar="WORK",
        help="cartpole (default), lunarlander, reacher, humanoidstandup, memory",
    )
    parser.add_argument(
        "--ranks",
        type=whole_number(1),
        nargs="+",
        default=[1],
        metavar="N",
        help="numbers of ranks of lockstep, which are compared",
    )
    add_repeats(parser)
    add_json(parser)
    parser.add_argument(
        "--updates",
        type=whole_number(LEAST),
        metavar="K",
        help="updates of every run, of 2,048 steps each (default: enough for some seconds)",
    )
    parser.add_argument(
        "--python",
        action="append",
        metavar="PATH",
        help="Python interpreter of an environment with the other libraries; may be given several times",
    )
    return parser

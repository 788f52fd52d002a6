"""`lockstep bench throughput`: measure how fast an experiment trains, and where its time goes."""

import dataclasses
from collections.abc import Sequence

from lockstep.algorithm.plan import default_ranks
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.benchmarks import add_json, compose_config, make_parser, print_line, resolve_config, write_json
from lockstep.config import Config
from lockstep.config.decode import encode
from lockstep.config.flags import parse_flags
from lockstep.processes.cores import usable_cores

__all__ = ["main"]

_GPU = "GPU"
Case = tuple[Config, int]
"""Resolved config, and the number of ranks that run it."""


def main(argv: Sequence[str]) -> int:
    """Measure and print a table. Return the exit code. Raises ValueError for bad input, before anything is measured."""
    parser = _parser()
    tree, rest = parse_flags(argv, parser.flags)
    args = parser.read(rest)
    config = compose_config(args, tree)
    cases = _cases(config) if args.ranks is None else {"": resolve_config(config, args.ranks)}

    from lockstep.bench import hardware, throughput

    results = throughput.measure(cases, args.repeats, args.seconds, args.iterations, print_line)
    report: dict[str, object] = {"config": encode(next(iter(cases.values()))[0])}
    if args.ranks is None:
        gpu = _GPU in cases
        print("\n".join(hardware.compare(results, gpu)))
        print("\nwith --ranks N: one case only, with the memory of every rank")
        report |= hardware.record(results, gpu)
    else:
        print("\n".join(throughput.table(results[""])))
        report |= results[""].record()
    write_json(args, "throughput", max(ranks for _, ranks in cases.values()), report)
    return 0


def _cases(config: Config) -> dict[str, Case]:
    """Return the cases by name: one process, and if possible several processes, and one process on a GPU."""
    from lockstep.bench.scaling import for_ranks
    from lockstep.runtime.checks import cuda_devices

    on_cpu, on_gpu = (_on_device(config, device) for device in ("cpu", "cuda"))
    cases = {"1 process": resolve_config(for_ranks(on_cpu, 1), 1)}
    parallel = _parallel_case(on_cpu)
    if parallel is not None:
        cases[f"{parallel[1]} processes"] = parallel
    if cuda_devices():
        cases[_GPU] = resolve_config(for_ranks(on_gpu, 1), 1)
    return cases


def _on_device(config: Config, device: str) -> Config:
    """Return the config for a device. A config whose `runtime.device` is not `auto` is returned unchanged."""
    if config.runtime.device != "auto":
        return config
    return dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, device=device))


def _parallel_case(config: Config) -> Case | None:
    """Return the case with the largest number of ranks that the experiment can be split for, at most one per core.

    The number is at least 2, and at least what the plan needs. Return None if the experiment can only run on one rank.
    """
    fewest = default_ranks(config.plan, 1)
    for ranks in range(usable_cores(), max(fewest, 2), -1):
        try:
            return resolve_config(config, ranks)
        except ValueError:
            continue  # the experiment cannot be split for this many ranks
    try:
        return resolve_config(config, max(fewest, 2))
    except ValueError:
        if fewest > 1:
            raise
        return None


def _parser() -> Arguments:
    parser = make_parser(
        "throughput",
        "Trains an experiment several times, on one process, on one process per core and on a GPU if there is one, and prints the time of each phase.",
    )
    parser.add_argument(
        "--ranks", type=whole_number(1), metavar="N", help="measure this number of processes only, in more detail"
    )
    add_json(parser)
    return parser

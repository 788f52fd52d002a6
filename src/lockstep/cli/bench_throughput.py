"""`lockstep bench throughput`: how fast an experiment trains, and where its time goes."""

import dataclasses
from collections.abc import Sequence

from lockstep.algorithm.plan import default_ranks
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.cli.benchmarks import add_json, composed, parser_of, resolved, tell, write
from lockstep.config import Config
from lockstep.config.decode import encode
from lockstep.config.flags import parse_flags
from lockstep.group.memory import usable_cores

__all__ = ["main"]

_OWN = ("--config", "--ranks", "--repeats", "--seconds", "--iterations", "--json")
_GPU = "GPU"
Case = tuple[Config, int]
"""A resolved experiment, and the ranks that carry it."""


def main(argv: Sequence[str]) -> int:
    """Measures and prints a table. Raises ValueError in one line, before anything is measured."""
    tree, rest = parse_flags(argv, _OWN)
    own = _parser().read(rest)
    config = composed(own, tree)
    cases = _cases(config) if own.ranks is None else {"": resolved(config, own.ranks)}

    from lockstep.bench import hardware, throughput

    found = throughput.measure(cases, own.repeats, own.seconds, own.iterations, tell)
    described: dict[str, object] = {"config": encode(next(iter(cases.values()))[0])}
    if own.ranks is None:
        gpu = _GPU in cases
        print("\n".join(hardware.compare(found, gpu)))
        print("\nwith --ranks N: one of these alone, with the memory of every rank")
        described |= hardware.record(found, gpu)
    else:
        print("\n".join(throughput.table(found[""])))
        described |= found[""].record()
    write(own, "throughput", max(ranks for _, ranks in cases.values()), described)
    return 0


def _cases(config: Config) -> dict[str, Case]:
    """One process, one per core (or what the plan asks for), and a GPU if there is one."""
    from lockstep.bench.scaling import for_ranks
    from lockstep.runtime.checks import cuda_devices

    on_cpu, on_gpu = (_on(config, device) for device in ("cpu", "cuda"))
    cases = {"1 process": resolved(for_ranks(on_cpu, 1), 1)}
    several = _several(on_cpu)
    if several is not None:
        cases[f"{several[1]} processes"] = several
    if cuda_devices():
        cases[_GPU] = resolved(for_ranks(on_gpu, 1), 1)
    return cases


def _on(config: Config, device: str) -> Config:
    """The experiment on a device; where one was named, it is meant."""
    if config.runtime.device != "auto":
        return config
    return dataclasses.replace(config, runtime=dataclasses.replace(config.runtime, device=device))


def _several(config: Config) -> Case | None:
    """As many ranks as there are cores and the experiment can be cut for; those that a plan needs in any case. None: one alone."""
    least = default_ranks(config.plan, 1)
    for ranks in range(usable_cores(), max(least, 2), -1):
        try:
            return resolved(config, ranks)
        except ValueError:
            continue  # it can't be cut for so many
    try:
        return resolved(config, max(least, 2))
    except ValueError:
        if least > 1:
            raise
        return None


def _parser() -> Arguments:
    parser = parser_of(
        "throughput",
        "Trains an experiment several times on one process, on one per core and on a GPU, if there is one, and prints where the time goes.",
    )
    parser.add_argument(
        "--ranks", type=whole_number(1), metavar="N", help="measure so many processes alone, in more detail"
    )
    add_json(parser)
    return parser

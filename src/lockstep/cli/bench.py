"""`lockstep bench`: how fast experiments train here."""

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial
from pathlib import Path

from lockstep import presets
from lockstep.bench.children import Failed
from lockstep.cli.arguments import Arguments, whole_number
from lockstep.config import Config
from lockstep.config.compose import load
from lockstep.config.decode import encode
from lockstep.config.flags import parse_flags
from lockstep.envs.modules import import_environments
from lockstep.group.memory import usable_cores
from lockstep.run.environment import describe_environment
from lockstep.runtime.place import find_place

__all__ = ["main"]

_KINDS = {
    "throughput": "steps per second, where the time goes, the environments alone",
    "scaling": "steps per second on 1 to N ranks, strong and weak",
    "peers": "the same work in lockstep and in other implementations of PPO",
}
_OWN = ("--config", "--ranks", "--repeats", "--seconds", "--iterations", "--json")
_OWN_OF_PEERS = ("--work", "--ranks", "--repeats", "--updates", "--python", "--json")
_FREE = ("env.engine", "env.threads")
_LEAST = 5
_LONGEST = 3600
_LONG = 1_000_000
"""Steps of a run that the speeds of peers are compared for: what is worth its time in it is done."""


def main(argv: Sequence[str]) -> int:
    """Measures and prints a table. Raises ValueError in one line for bad input, before anything is measured."""
    if not argv or argv[0] in ("-h", "--help"):
        print(_help())
        return 0 if argv else 2
    kind = argv[0]
    if kind not in _KINDS:
        close = get_close_matches(kind, _KINDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(_KINDS)}"
        raise ValueError(f"{kind}: there is no such benchmark; {hint}")
    place = find_place()
    if place is not None:
        raise ValueError(f"bench starts its own ranks: use it without {place.launcher}, with --ranks")
    try:
        return {"throughput": _throughput, "scaling": _scaling, "peers": _peers}[kind](argv[1:])
    except Failed as error:
        _tell(f"lockstep: {error}")
        return 1


def _help() -> str:
    kinds = "\n".join(f"  {kind:<12}{line}" for kind, line in _KINDS.items())
    return f"usage: lockstep bench KIND …\n\nMeasures how fast experiments train here.\n\n{kinds}\n\nlockstep bench KIND --help says more."


def _throughput(argv: Sequence[str]) -> int:
    parser = _parser("throughput", "Trains an experiment several times and prints where the time goes.")
    tree, rest = parse_flags(argv, _OWN)
    own = parser.read(rest)
    config, ranks = _resolved(_composed(own, tree), own.ranks)

    from lockstep.bench.throughput import measure, table

    found = measure(config, ranks, own.repeats, own.seconds, own.iterations, _tell)
    print("\n".join(table(found)))
    _write(own, "throughput", ranks, {"config": encode(config), **found.record()})
    return 0


def _scaling(argv: Sequence[str]) -> int:
    parser = _parser("scaling", "Trains an experiment on 1 to N ranks, and one that grows with the ranks.")
    tree, rest = parse_flags(argv, _OWN)
    own = parser.read(rest)
    config = _composed(own, tree)
    if config.plan.kind != "coupled" or config.env.per_rank is not None:
        raise ValueError(
            f"plan.kind is {config.plan.kind!r}: scaling is measured with 'coupled' alone"
            if config.plan.kind != "coupled"
            else "env.per_rank: scaling sets it itself; give env.count, the environments of one rank"
        )
    ranks = [count for count in (1, 2, 4, 8, 16, 32, 64) if count < (own.ranks or 2)] + [own.ranks or 2]

    from lockstep.bench.scaling import measure, table, weak

    # what is decided for one rank, to compile or not, holds for all
    config = dataclasses.replace(config, runtime=_resolved(config, 1)[0].runtime)
    strong = {count: _resolved(config, count)[0] for count in ranks}
    grown = {count: _resolved(weak(config, count), count)[0] for count in ranks}
    found = measure(strong, grown, own.repeats, own.seconds, own.iterations, _tell)
    print("\n".join(table(strong[1], found)))
    _write(own, "scaling", ranks[-1], {"config": encode(strong[1]), **found.record()})
    return 0


def _peers(argv: Sequence[str]) -> int:
    tree, rest = parse_flags(argv, _OWN_OF_PEERS)
    own = _parser_of_peers().read(rest)
    given = [f"{section}.{field}" for section, fields in tree.items() for field in fields]
    fixed = next((name for name in given if name not in _FREE and not name.startswith(("runtime.", "plan."))), None)
    if fixed:
        raise ValueError(
            f"--{fixed.replace('_', '-')}: it is part of the work, which is the same for all; free are plan, runtime, {', '.join(_FREE)}"
        )

    from lockstep.bench import comparison
    from lockstep.bench.repeats import interleave
    from lockstep.bench.works import ENVIRONMENTS, STEPS, WORKS

    if own.work not in WORKS:
        close = get_close_matches(own.work, WORKS, 1)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(WORKS)}"
        raise ValueError(f"--work is {own.work!r}: there is no such work; {hint}")
    work = WORKS[own.work]
    updates = own.updates or work.updates
    flags, _ = parse_flags(work.flags())
    merged = {section: {**flags.get(section, {}), **tree.get(section, {})} for section in {**flags, **tree}}
    merged["run"] = {"total_steps": _LONG}
    configs = [_resolved(load(None, None, merged), ranks) for ranks in dict.fromkeys(own.ranks)]
    peers, absent = comparison.find_peers(own.python or [sys.executable], work)
    if not peers:
        packages = " ".join(peer.package for peer in absent)
        raise ValueError(
            f"no peer is installed here: pip install {packages}, or name another interpreter with --python"
        )
    for peer in absent:
        _tell(
            f"{peer.name} is not installed here: pip install {peer.package}, or name another interpreter with --python"
        )
    runs: dict[str, Callable[[], comparison.Finish]] = {
        f"lockstep, {ranks} rank{'s' * (ranks > 1)}": partial(comparison.trained, config, ranks, updates)
        for config, ranks in configs
    }
    for one in peers:
        command = work.command(one.peer, one.interpreter, updates)
        runs[f"{one.peer.name} {one.version}"] = partial(comparison.marked, command)

    def show(repeat: int, name: str, result: comparison.Finish) -> None:
        _tell(f"repeat {repeat + 1}/{own.repeats}  {name:<24}  {result.rate:>9,.0f} steps/s")

    found, first = interleave(runs, own.repeats, show), next(iter(runs))
    engines = " or ".join(dict.fromkeys(config.env.engine for config, _ in configs))
    compiled = "compiled" if configs[0][0].runtime.compile == "on" else "not compiled"
    print(
        f"{work.env_id}: {ENVIRONMENTS} environments x {STEPS} steps; {work.epochs} epochs of {work.minibatches} minibatches"
    )
    print(f"lockstep: engine {engines}, {compiled}; others: environments one after the other\n")
    print("\n".join(comparison.table(found, first)))
    _write(
        own,
        "peers",
        max(own.ranks),
        {"config": encode(configs[0][0]), "updates": updates, "runs": comparison.record(found, first)},
    )
    return 0


def _composed(own: argparse.Namespace, tree: Mapping[str, object]) -> Config:
    config = load(presets.read(own.preset) if own.preset else None, own.config, tree)
    import_environments(config.env.module)  # `load` takes it from flags alone
    return config


def _resolved(config: Config, ranks: int | None) -> tuple[Config, int]:
    """The config with everything decided as `train` would, whether to compile too, and the ranks. A budget that is less than one
    iteration is no error. Raises ValueError.
    """
    from lockstep.resolving import resolve
    from lockstep.starting import settle

    config, _, count = settle(config, None, ranks)
    environments = config.env.per_rank * count if config.env.per_rank else config.env.count
    steps = max(config.run.total_steps, environments * config.rollout.steps)
    return resolve(dataclasses.replace(config, run=dataclasses.replace(config.run, total_steps=steps)), count), count


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _write(own: argparse.Namespace, kind: str, ranks: int, found: Mapping[str, object]) -> None:
    if own.json is None:
        return
    environment = {name: value for name, value in describe_environment(ranks).items() if name != "host"}
    arguments = {name: value for name, value in vars(own).items() if name not in ("json", "config")}
    settings = {"benchmark": kind, "arguments": arguments, "cores": usable_cores(), **environment}
    own.json.write_text(json.dumps({**settings, **found}, indent=1) + "\n")


def _parser(kind: str, does: str) -> Arguments:
    parser = Arguments(f"bench {kind}", f"{does} Takes every flag of `lockstep train` as well.")
    parser.add_argument("preset", nargs="?", metavar="PRESET", help="a ready experiment; `lockstep presets` lists them")
    parser.add_argument("--config", type=Path, metavar="FILE", help="a .yaml, .json or .gin file, over the preset")
    parser.add_argument("--ranks", type=whole_number(1), metavar="N", help="processes on this host, as for train")
    _add_shared(parser)
    parser.add_argument(
        "--seconds", type=_seconds, default=5.0, metavar="S", help="of every run, about, after its start (default 5)"
    )
    parser.add_argument(
        "--iterations",
        type=whole_number(_LEAST),
        metavar="K",
        help="of every run, instead of --seconds; the first tenth, at least 2, is left out",
    )
    return parser


def _parser_of_peers() -> Arguments:
    parser = Arguments(
        "bench peers",
        "Trains on the same work with lockstep and with Stable-Baselines3, sb3-contrib and skrl, where they are installed. "
        f"Takes the flags of plan and runtime, and --{_FREE[0]} and --{_FREE[1]}, as well.",
    )
    parser.add_argument(
        "--work",
        default="cartpole",
        metavar="WORK",
        help="cartpole (default), lunarlander, reacher, humanoidstandup, memory",
    )
    parser.add_argument(
        "--ranks", type=whole_number(1), nargs="+", default=[1], metavar="N", help="of lockstep; several are compared"
    )
    _add_shared(parser)
    parser.add_argument(
        "--updates", type=whole_number(_LEAST), metavar="K", help="of every run, of 2,048 steps (default some seconds)"
    )
    parser.add_argument(
        "--python",
        action="append",
        metavar="PATH",
        help="an interpreter that has the peers; may be given several times",
    )
    return parser


def _add_shared(parser: Arguments) -> None:
    parser.add_argument(
        "--repeats", type=whole_number(1), default=5, metavar="R", help="runs of each, in turn (default 5)"
    )
    parser.add_argument(
        "--json", type=_new_file, metavar="FILE", help="write everything there, machine and versions too"
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= _LONGEST:
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be above 0 and at most {_LONGEST}")
    return seconds


def _new_file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():  # else an hour's numbers would find no place
        raise argparse.ArgumentTypeError(f"is {text!r}: it must be a file in a folder that exists")
    return path

"""The table: steps per second of lockstep, of its peers, and of the limit where one is given.

    python benchmarks/throughput.py [--only A B C D E F large decoupled scaling-8 scaling-64] [--repeats 5] [--updates N]
        [--python PATH] [--limit 'NAME=COMMAND'] [--beside 'PART=NAME=COMMAND'] [--flag '--section.field value']
        [--note TEXT] [--out benchmarks/throughput.json]

It writes throughput.json and, from it, throughput.md. Parts that are measured replace those in the file, the others stay, so that
it can be done in pieces.

All programs of a part run one after the other in each repeat, every repeat beginning with the next one, and ratios are taken within a
repeat, so that what else happens on the machine meets all alike. Steps per second are those between the marks that programs print after
updates (of lockstep, between its metrics: it prints several updates at once), from 4,096 steps on. Each has one thread per process.

A to E are the works of `lockstep bench peers`: 8 environments of 256 steps and minibatches of 512 or 64, on 2 ranks for each of them; F has the sizes of A. `--python`
is an interpreter that has the peers; those that are not installed are left out. `--beside` is another program that does the work of a part, and prints
`steps N` after every update. `--limit` is a program that does A to D, and A in other sizes, without a framework, and
prints a line of JSON with `sps`; it is told by `{work}`, `{ranks}`, and for each rank `{envs}` and `{minibatch}`, which are replaced. `--flag` is given
to lockstep in all its runs. The update is compiled, as in a long run, where there is a compiler.

Scaling is set beside what the machine gives: "1 rank, twice at once" is the sum of two runs that know nothing of each other. What two ranks of twice the
size lose of that, they lose by exchanging and by waiting for each other, which the phases tell apart.
"""

import argparse
import dataclasses
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from lockstep.bench.comparison import Finish, find_peers, marked, trained
from lockstep.bench.repeats import interleave, ratios, spread
from lockstep.bench.workloads import ENVIRONMENTS, STEPS, WORKS
from lockstep.config.compose import load
from lockstep.config.flags import parse_flags
from lockstep.experiment.resolve import resolve
from lockstep.processes.children import ProcessFailed, child
from lockstep.run.environment import describe_environment

LETTERS = dict(zip("ABCDE", WORKS, strict=True))
CARTPOLE = WORKS["cartpole"]
Runs = dict[str, Callable[[], Finish]]


def lockstep(words: list[str], ranks: int, updates: int, flags: list[str]) -> Callable[[], Finish]:
    """A run of lockstep with these flags, the later ones over the earlier."""
    tree: dict[str, dict[str, object]] = {"runtime": {"device": "cpu"}}
    for given in (words, flags):
        for section, fields in parse_flags(given)[0].items():
            tree.setdefault(section, {}).update(fields)
    config = load(None, None, tree)
    run = dataclasses.replace(config.run, total_steps=10**12)
    return partial(trained, resolve(dataclasses.replace(config, run=run), ranks), ranks, updates)


def reported(command: list[str]) -> Finish:
    """Runs a program that measures itself and prints a line of JSON with `sps`."""
    begun, rate = time.perf_counter(), 0.0
    with child(command, {**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                rate = float(json.loads(line)["sps"])
    if not rate:
        raise ProcessFailed(f"{shlex.join(command)} printed no line of JSON with sps")
    return Finish(rate, time.perf_counter() - begun, 0.0)


def limits(letter: str, ranks: int, envs: int, minibatch: int, arguments: argparse.Namespace) -> Runs:
    """The programs without a framework, by name; environments and rows of a minibatch are those of each rank."""
    found: Runs = {}
    for given in arguments.limit:
        name, _, command = given.partition("=")
        placed = command.format(work=letter, ranks=ranks, envs=envs, minibatch=minibatch)
        found[name] = partial(reported, shlex.split(placed))
    return found


def beside(part: str, arguments: argparse.Namespace) -> Runs:
    """The other programs that do this part's work, by name."""
    split = [given.split("=", 2) for given in arguments.beside]
    return {name: partial(marked, shlex.split(command)) for where, name, command in split if where == part}


def at_once(run: Callable[[], Finish]) -> Finish:
    """The same run twice at the same time: the sum of their rates, and the mean of their phases."""
    with ThreadPoolExecutor(2) as pool:
        one, other = [began.result() for began in [pool.submit(run) for _ in range(2)]]
    phases = {name: (one.phases[name] + other.phases[name]) / 2 for name in one.phases}
    return Finish(
        one.rate + other.rate, max(one.seconds, other.seconds), max(one.first_update, other.first_update), phases
    )


def compared(letter: str, arguments: argparse.Namespace) -> tuple[Runs, list[tuple[str, str]]]:
    """One of the works: what is run, and which pairs are compared."""
    work = WORKS[LETTERS[letter]]
    updates = arguments.updates or 2 * work.updates
    runs: Runs = {
        f"lockstep, {named(ranks)}": lockstep(work.flags(8 * ranks), ranks, updates, arguments.flags)
        for ranks in (1, 2)
    }
    ours = list(runs)
    pairs = [(ours[1], ours[0])]
    for one in find_peers(arguments.python or [sys.executable], work)[0]:
        peer = f"{one.peer.name} {one.version}"
        runs[peer] = partial(marked, work.command(one.peer, one.interpreter, updates))
        pairs += [(own, peer) for own in ours]
    rows = ENVIRONMENTS * STEPS // work.minibatches
    for ranks in () if work.memory else (1, 2):
        for name, run in limits(letter, ranks, ENVIRONMENTS, rows, arguments).items():
            runs[f"{name}, {named(ranks)}"] = run
            pairs.append((ours[ranks - 1], f"{name}, {named(ranks)}"))
    return runs, pairs


def named(ranks: int) -> str:
    """In words."""
    return f"{ranks} rank{'s' * (ranks > 1)}"


def large(arguments: argparse.Namespace) -> tuple[Runs, list[tuple[str, str]]]:
    """Many environments and few updates."""
    words = dataclasses.replace(CARTPOLE, epochs=1, minibatches=8).flags(4096, 64)
    return {"lockstep, 2 ranks": lockstep(words, 2, arguments.updates or 8, arguments.flags)}, []


def decoupled(arguments: argparse.Namespace) -> tuple[Runs, list[tuple[str, str]]]:
    """One player beside one trainer."""
    words = [*CARTPOLE.flags(), "--plan", "1:1"]
    return {"lockstep, 1:1": lockstep(words, 2, arguments.updates or 100, arguments.flags)}, []


def curious(arguments: argparse.Namespace) -> tuple[Runs, list[tuple[str, str]]]:
    """Random network distillation beside none."""
    runs = {
        f"{kind}, {named(ranks)}": lockstep(
            ["--env", "MountainCar-v0", *CARTPOLE.flags(8 * ranks)[2:], "--curiosity.kind", kind],
            ranks,
            arguments.updates or 100,
            arguments.flags,
        )
        for kind in ("none", "rnd")
        for ranks in (1, 2)
    }
    return runs, [(f"none, {named(ranks)}", f"rnd, {named(ranks)}") for ranks in (1, 2)]


def scaling(environments: int, arguments: argparse.Namespace) -> tuple[Runs, list[tuple[str, str]]]:
    """From 1 rank to 2: the same experiment, the one that each would be cut in, and twice as large a one."""
    updates = arguments.updates or (100 if environments == 8 else 20)

    def run(count: int, shards: int, ranks: int) -> Callable[[], Finish]:
        return lockstep([*CARTPOLE.flags(count), "--plan.shards", str(shards)], ranks, updates, arguments.flags)

    alone, cut, shared, grown = "1 rank, 1 shard", "1 rank, 2 shards", "2 ranks, 2 shards", "2 ranks, twice the size"
    twice = "1 rank, twice at once"
    runs: Runs = {
        alone: run(environments, 1, 1),
        cut: run(environments, 2, 1),
        shared: run(environments, 2, 2),
        twice: partial(at_once, run(environments, 1, 1)),
        grown: run(2 * environments, 2, 2),
    }
    pairs = [(shared, cut), (shared, alone), (grown, alone), (twice, alone), (grown, twice)]
    rows = environments * STEPS // CARTPOLE.minibatches
    singles, halves, doubles = (
        limits("A", ranks, environments * size // 2, rows * size // 2, arguments)
        for ranks, size in ((1, 2), (2, 1), (2, 2))
    )
    for name in singles:
        one, half, double = f"{name}, 1 rank", f"{name}, 2 ranks", f"{name}, twice the size"
        runs |= {one: singles[name], half: halves[name], double: doubles[name]}
        pairs += [(half, one), (double, one)]
    return runs, pairs


def titled(work: str) -> str:
    """Of a work, in words."""
    memory = WORKS[work].memory
    return WORKS[work].env_id + (f", LSTM {memory}" if memory else "")


PARTS: dict[str, tuple[str, Callable[[argparse.Namespace], tuple[Runs, list[tuple[str, str]]]]]] = {
    **{letter: (titled(work), partial(compared, letter)) for letter, work in LETTERS.items()},
    "F": ("MountainCar-v0 with RND and without", curious),
    "large": ("CartPole-v1, 4,096 environments of 64 steps, 1 epoch", large),
    "decoupled": ("CartPole-v1, one player beside one trainer", decoupled),
    "scaling-8": ("CartPole-v1, 8 environments, from 1 rank to 2", partial(scaling, 8)),
    "scaling-64": ("CartPole-v1, 64 environments, from 1 rank to 2", partial(scaling, 64)),
}


def measure(part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """The record of one part."""
    runs, pairs = PARTS[part][1](arguments)
    others = beside(part, arguments)

    def show(repeat: int, name: str, finish: Finish) -> None:
        line = f"{part}, repeat {repeat + 1}/{arguments.repeats}  {name:<26}{finish.rate:>11,.0f} steps/s"
        print(line, file=sys.stderr, flush=True)

    found: dict[str, dict[str, Any]] = {
        name: {
            "rates": [run.rate for run in finishes],
            "seconds": [run.seconds for run in finishes],
            "phases": {phase: statistics.median(run.phases[phase] for run in finishes) for phase in finishes[0].phases},
        }
        for name, finishes in interleave({**runs, **others}, arguments.repeats, show).items()
    }
    pairs = pairs + [(name, other) for other in others for name in found if found[name]["phases"]]
    return {
        "title": PARTS[part][0],
        "repeats": arguments.repeats,
        "updates": arguments.updates,
        "flags": arguments.flags,
        "runs": {
            name: {
                "steps_per_second": dataclasses.asdict(spread(run["rates"])),
                "process_seconds": dataclasses.asdict(spread(run["seconds"])),
                **run,
            }
            for name, run in found.items()
        },
        "ratios": [
            {"of": one, "to": other, **dataclasses.asdict(ratios(found[one]["rates"], found[other]["rates"]))}
            for one, other in pairs
        ],
    }


def page(result: dict[str, Any], packages: str) -> str:
    """The tables as Markdown."""
    lines = [
        "# Throughput",
        "",
        "    python benchmarks/throughput.py           # writes benchmarks/throughput.json",
        "",
    ]
    lines += [
        *([result["note"], ""] if result.get("note") else []),
        "Environment steps per second while training, by programs that run in turn: medians over repeats, with the least and the most, and ratios",
        f"within a repeat; of lockstep, milliseconds of an iteration of rank 0, by phase. One thread per process. {packages}.",
    ]
    for name, part in result["parts"].items():
        lines += ["", f"## {name}: {part['title']}"]
        lines += ["", "| | steps/s | least … most | whole process |", "| --- | --- | --- | --- |"]
        for program, run in part["runs"].items():
            rate, whole = run["steps_per_second"], run["process_seconds"]
            extremes = f"{rate['least']:,.0f} … {rate['most']:,.0f}"
            lines.append(f"| {program} | {rate['median']:,.0f} | {extremes} | {whole['median']:.1f} s |")
        if part["ratios"]:
            lines += ["", "| | ratio | least … most |", "| --- | --- | --- |"]
        for ratio in part["ratios"]:
            pair = f"{ratio['of']} / {ratio['to']}"
            lines.append(f"| {pair} | {ratio['median']:.2f} | {ratio['least']:.2f} … {ratio['most']:.2f} |")
        ours = {program: run["phases"] for program, run in part["runs"].items() if run.get("phases")}
        columns = list(next(iter(ours.values()), {}))
        if ours:
            lines += ["", f"| ms | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
        for program, phases in ours.items():
            lines.append(f"| {program} | {' | '.join(f'{phases[column]:.2f}' for column in columns)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the files, after every part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("throughput.json"))
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--beside", action="append", default=[], metavar="PART=NAME=COMMAND")
    parser.add_argument("--note", help="what to say of the machine, above the tables")
    parser.add_argument("--flag", action="append", default=[], metavar="'--section.field value'")
    arguments = parser.parse_args()
    arguments.flags = [word for flag in arguments.flag for word in shlex.split(flag)]
    result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"parts": {}}
    if arguments.note is not None:
        result["note"] = arguments.note
    for part in arguments.only:
        result["parts"][part] = measure(part, arguments)
        result["parts"] = {name: result["parts"][name] for name in PARTS if name in result["parts"]}
        environment = describe_environment(2)
        result["processor"], result["cores"] = environment["processor"], os.cpu_count()
        result["python"], result["versions"] = platform.python_version(), environment["packages"]
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
        machine = f"{result['cores']} cores of {result['processor']}, PyTorch {version('torch')}"
        arguments.out.with_suffix(".md").write_text(page(result, machine))


if __name__ == "__main__":
    main()

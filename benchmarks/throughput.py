"""Measure steps per second of lockstep, of other implementations, and of programs without a framework.

    python benchmarks/throughput.py [--only A B C D E F large decoupled scaling-8 scaling-64] [--repeats 5] [--updates N]
        [--python PATH] [--limit 'NAME=COMMAND'] [--beside 'PART=NAME=COMMAND'] [--flag '--section.field value']
        [--note TEXT] [--out benchmarks/throughput.json]

Writes throughput.json and, from it, throughput.md. Measured parts replace those in the file; the other parts stay, so the parts can be measured one by one.

In each repeat, all programs of a part run one after the other, starting with another program. Ratios are computed within a repeat, so that other load on the
machine affects all programs equally. Steps per second are measured between the lines that programs print after updates, from 4,096 steps on. (For lockstep they
are measured from its metrics, because it prints several updates at once.) Each program has one thread per process.

Parts A to E are the workloads of `lockstep bench peers`: 8 environments per rank, 256 steps, and minibatches of 512 or 64. F has the sizes of A.

    --python  an interpreter that has the other implementations; those that are not installed are skipped
    --beside  another program for a part; it must print `steps N` after every update
    --limit   a program without a framework for A to D, and for A in other sizes; it must print a line of JSON with `sps`. In the command, `{work}` and `{ranks}`,
              and per rank `{envs}` and `{minibatch}`, are replaced
    --flag    a flag for all runs of lockstep

The update is compiled if there is a compiler, as in a long run.

For scaling, "1 rank, twice at once" is the sum of two independent runs at the same time: what the machine can give. Two ranks with twice the size lose
time against it by communication and by waiting for each other; the phases show both.
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

from lockstep.bench.comparison import ProgramTiming, find_peers, time_lockstep, time_program
from lockstep.bench.repeats import interleave, ratios, spread
from lockstep.bench.workloads import ENVIRONMENTS, STEPS, WORKLOADS
from lockstep.config.compose import load
from lockstep.config.flags import parse_flags
from lockstep.experiment.resolve import resolve
from lockstep.processes.children import ProcessFailed, child
from lockstep.run.environment import describe_environment

LETTERS = dict(zip("ABCDE", WORKLOADS, strict=True))
CARTPOLE = WORKLOADS["cartpole"]
Runs = dict[str, Callable[[], ProgramTiming]]
Part = tuple[Runs, list[tuple[str, str]]]
"""Programs by name, and pairs of names whose ratio is reported."""


def lockstep(workload_flags: list[str], ranks: int, updates: int, flags: list[str]) -> Callable[[], ProgramTiming]:
    """Return a function that runs lockstep; `flags` override `workload_flags`."""
    tree: dict[str, dict[str, object]] = {"runtime": {"device": "cpu"}}
    for source in (workload_flags, flags):
        for section, fields in parse_flags(source)[0].items():
            tree.setdefault(section, {}).update(fields)
    config = load(None, None, tree)
    run = dataclasses.replace(config.run, total_steps=10**12)
    return partial(time_lockstep, resolve(dataclasses.replace(config, run=run), ranks), ranks, updates)


def run_self_measuring(command: list[str]) -> ProgramTiming:
    """Run a program that measures itself and prints a line of JSON with `sps`. Raises ProcessFailed if it prints none."""
    start, rate = time.perf_counter(), 0.0
    with child(command, {**os.environ, "OMP_NUM_THREADS": "1"}) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("{"):
                rate = float(json.loads(line)["sps"])
    if not rate:
        raise ProcessFailed(f"{shlex.join(command)} printed no line of JSON with sps")
    return ProgramTiming(rate, time.perf_counter() - start, 0.0)


def limit_runs(letter: str, ranks: int, envs: int, minibatch: int, arguments: argparse.Namespace) -> Runs:
    """Return the programs without a framework, by name. `envs` and `minibatch` are per rank."""
    runs: Runs = {}
    for option in arguments.limit:
        name, _, command = option.partition("=")
        filled_in = command.format(work=letter, ranks=ranks, envs=envs, minibatch=minibatch)
        runs[name] = partial(run_self_measuring, shlex.split(filled_in))
    return runs


def other_programs(part: str, arguments: argparse.Namespace) -> Runs:
    """Return the programs of `--beside` for this part, by name."""
    options = [option.split("=", 2) for option in arguments.beside]
    return {
        name: partial(time_program, shlex.split(command)) for for_part, name, command in options if for_part == part
    }


def at_once(run: Callable[[], ProgramTiming]) -> ProgramTiming:
    """Run the same program twice at the same time. Return the sum of the speeds, and the means of the phases."""
    with ThreadPoolExecutor(2) as pool:
        first, second = [future.result() for future in [pool.submit(run) for _ in range(2)]]
    phases = {name: (first.phases[name] + second.phases[name]) / 2 for name in first.phases}
    return ProgramTiming(
        first.rate + second.rate,
        max(first.seconds, second.seconds),
        max(first.first_update, second.first_update),
        phases,
    )


def compared(letter: str, arguments: argparse.Namespace) -> Part:
    """Return the programs of one workload, and the pairs to compare."""
    work = WORKLOADS[LETTERS[letter]]
    updates = arguments.updates or 2 * work.updates
    runs: Runs = {
        f"lockstep, {rank_count(ranks)}": lockstep(work.flags(8 * ranks), ranks, updates, arguments.flags)
        for ranks in (1, 2)
    }
    lockstep_names = list(runs)
    pairs = [(lockstep_names[1], lockstep_names[0])]
    for installed in find_peers(arguments.python or [sys.executable], work)[0]:
        peer_name = f"{installed.peer.name} {installed.version}"
        runs[peer_name] = partial(time_program, work.command(installed.peer, installed.interpreter, updates))
        pairs += [(name, peer_name) for name in lockstep_names]
    rows = ENVIRONMENTS * STEPS // work.minibatches
    for ranks in () if work.memory else (1, 2):
        for name, run in limit_runs(letter, ranks, ENVIRONMENTS, rows, arguments).items():
            runs[f"{name}, {rank_count(ranks)}"] = run
            pairs.append((lockstep_names[ranks - 1], f"{name}, {rank_count(ranks)}"))
    return runs, pairs


def rank_count(ranks: int) -> str:
    """Format a number of ranks, for example `2 ranks`."""
    return f"{ranks} rank{'s' * (ranks > 1)}"


def large(arguments: argparse.Namespace) -> Part:
    """Return a run with many environments and few updates."""
    workload_flags = dataclasses.replace(CARTPOLE, epochs=1, minibatches=8).flags(4096, 64)
    return {"lockstep, 2 ranks": lockstep(workload_flags, 2, arguments.updates or 8, arguments.flags)}, []


def decoupled(arguments: argparse.Namespace) -> Part:
    """Return a run with one player and one trainer."""
    workload_flags = [*CARTPOLE.flags(), "--plan", "1:1"]
    return {"lockstep, 1:1": lockstep(workload_flags, 2, arguments.updates or 100, arguments.flags)}, []


def curious(arguments: argparse.Namespace) -> Part:
    """Return runs with random network distillation and without curiosity."""
    runs = {
        f"{kind}, {rank_count(ranks)}": lockstep(
            ["--env", "MountainCar-v0", *CARTPOLE.flags(8 * ranks)[2:], "--curiosity.kind", kind],
            ranks,
            arguments.updates or 100,
            arguments.flags,
        )
        for kind in ("none", "rnd")
        for ranks in (1, 2)
    }
    return runs, [(f"none, {rank_count(ranks)}", f"rnd, {rank_count(ranks)}") for ranks in (1, 2)]


def scaling(environments: int, arguments: argparse.Namespace) -> Part:
    """Return runs on 1 and 2 ranks: of the same experiment with 1 and 2 shards, and of an experiment of twice the size."""
    updates = arguments.updates or (100 if environments == 8 else 20)

    def run(count: int, shards: int, ranks: int) -> Callable[[], ProgramTiming]:
        return lockstep([*CARTPOLE.flags(count), "--plan.shards", str(shards)], ranks, updates, arguments.flags)

    one_shard, two_shards, two_ranks = "1 rank, 1 shard", "1 rank, 2 shards", "2 ranks, 2 shards"
    twice_the_size, twice_at_once = "2 ranks, twice the size", "1 rank, twice at once"
    runs: Runs = {
        one_shard: run(environments, 1, 1),
        two_shards: run(environments, 2, 1),
        two_ranks: run(environments, 2, 2),
        twice_at_once: partial(at_once, run(environments, 1, 1)),
        twice_the_size: run(2 * environments, 2, 2),
    }
    pairs = [
        (two_ranks, two_shards),
        (two_ranks, one_shard),
        (twice_the_size, one_shard),
        (twice_at_once, one_shard),
        (twice_the_size, twice_at_once),
    ]
    rows = environments * STEPS // CARTPOLE.minibatches
    singles, halves, doubles = (
        limit_runs("A", ranks, environments * size // 2, rows * size // 2, arguments)
        for ranks, size in ((1, 2), (2, 1), (2, 2))
    )
    for name in singles:
        single, half, double = f"{name}, 1 rank", f"{name}, 2 ranks", f"{name}, twice the size"
        runs |= {single: singles[name], half: halves[name], double: doubles[name]}
        pairs += [(half, single), (double, single)]
    return runs, pairs


def workload_title(work: str) -> str:
    """Return the title of a workload."""
    memory = WORKLOADS[work].memory
    return WORKLOADS[work].env_id + (f", LSTM {memory}" if memory else "")


PARTS: dict[str, tuple[str, Callable[[argparse.Namespace], Part]]] = {
    **{letter: (workload_title(work), partial(compared, letter)) for letter, work in LETTERS.items()},
    "F": ("MountainCar-v0 with and without RND", curious),
    "large": ("CartPole-v1, 4,096 environments of 64 steps, 1 epoch", large),
    "decoupled": ("CartPole-v1, one player and one trainer", decoupled),
    "scaling-8": ("CartPole-v1, 8 environments, from 1 rank to 2", partial(scaling, 8)),
    "scaling-64": ("CartPole-v1, 64 environments, from 1 rank to 2", partial(scaling, 64)),
}


def measure(part: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure all programs of a part and return its record."""
    runs, pairs = PARTS[part][1](arguments)
    others = other_programs(part, arguments)

    def show(repeat: int, name: str, finish: ProgramTiming) -> None:
        line = f"{part}, repeat {repeat + 1}/{arguments.repeats}  {name:<26}{finish.rate:>11,.0f} steps/s"
        print(line, file=sys.stderr, flush=True)

    measured: dict[str, dict[str, Any]] = {
        name: {
            "rates": [run.rate for run in finishes],
            "seconds": [run.seconds for run in finishes],
            "phases": {phase: statistics.median(run.phases[phase] for run in finishes) for phase in finishes[0].phases},
        }
        for name, finishes in interleave({**runs, **others}, arguments.repeats, show).items()
    }
    pairs = pairs + [(name, other) for other in others for name in measured if measured[name]["phases"]]
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
            for name, run in measured.items()
        },
        "ratios": [
            {"of": name, "to": other, **dataclasses.asdict(ratios(measured[name]["rates"], measured[other]["rates"]))}
            for name, other in pairs
        ],
    }


def page(result: dict[str, Any], packages: str) -> str:
    """Return the page with all tables, as Markdown."""
    lines = [
        "# Throughput",
        "",
        "    python benchmarks/throughput.py           # writes benchmarks/throughput.json",
        "",
    ]
    lines += [
        *([result["note"], ""] if result.get("note") else []),
        "Environment steps per second during training: medians over interleaved repeats, with minimum and maximum, and ratios within a repeat. Tables with the",
        f"header `ms` show the phases of an iteration of rank 0 in milliseconds. One thread per process. {packages}.",
    ]
    for name, part in result["parts"].items():
        lines += ["", f"## {name}: {part['title']}"]
        lines += ["", "| | steps/s | min … max | process time |", "| --- | --- | --- | --- |"]
        for program, run in part["runs"].items():
            rate, process = run["steps_per_second"], run["process_seconds"]
            limits = f"{rate['least']:,.0f} … {rate['most']:,.0f}"
            lines.append(f"| {program} | {rate['median']:,.0f} | {limits} | {process['median']:.1f} s |")
        if part["ratios"]:
            lines += ["", "| | ratio | min … max |", "| --- | --- | --- |"]
        for ratio in part["ratios"]:
            pair = f"{ratio['of']} / {ratio['to']}"
            lines.append(f"| {pair} | {ratio['median']:.2f} | {ratio['least']:.2f} … {ratio['most']:.2f} |")
        phases_by_program = {program: run["phases"] for program, run in part["runs"].items() if run.get("phases")}
        columns = list(next(iter(phases_by_program.values()), {}))
        if phases_by_program:
            lines += ["", f"| ms | {' | '.join(columns)} |", "| --- |" + " --- |" * len(columns)]
        for program, phases in phases_by_program.items():
            lines.append(f"| {program} | {' | '.join(f'{phases[column]:.2f}' for column in columns)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the parts; after each, write the JSON file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("throughput.json"))
    parser.add_argument("--only", nargs="+", default=list(PARTS), choices=list(PARTS))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--updates", type=int)
    parser.add_argument("--python", action="append", default=[])
    parser.add_argument("--limit", action="append", default=[], metavar="NAME=COMMAND")
    parser.add_argument("--beside", action="append", default=[], metavar="PART=NAME=COMMAND")
    parser.add_argument("--note", help="a note about the machine, shown above the tables")
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

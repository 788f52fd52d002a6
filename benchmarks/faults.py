"""Inject faults into runs, and write how each run ended to benchmarks/faults.json and faults.md, after every case.

    python benchmarks/faults.py [--parts matrix memory disk kills stored supervised soak steady] [--only TEXT] [--out benchmarks/faults.json]

`matrix`: every case trains CartPole with one player and two trainers, injects a fault in the middle, and compares the final digest with that of a
run without faults. `memory`: the same with two ranks whose memory is limited. `disk`: the same with a disk that
is full or read-only, and with a folder that is removed (as root). `kills`: 200 kills of a rank, the launcher or all processes
at random moments, each followed by a resume. `stored`: 50 kills of all processes of a run with `run.store`. `supervised`: 20 kills of
ranks of one run. `soak`: ten minutes of kills. `steady`: ten minutes without kills. `--only` runs the cases of `matrix`, `memory` and `disk` whose name contains the text. Results of
other parts and cases are kept.
"""

import argparse
import itertools
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))  # for `tests`

from disk_faults import DISK_FAULTS, disk_cases, repair
from fault_runs import HERE, ITERATIONS, TIMEOUT, Case, wait_until
from random_kills import kill_and_resume, kill_supervised, kills_table, soak
from stored_kills import kill_stored

from lockstep.run.environment import describe_environment

SPLIT = ("--plan", "1:2", "--ranks", "3")
PARTS = ("matrix", "memory", "disk", "kills", "stored", "supervised", "soak", "steady")
KILLS, STORED_KILLS, SUPERVISED_KILLS, SOAK = 200, 50, 20, 600.0
FAULT_AT = 12
"""The iteration in which a fault from outside is injected; environments fail in the same one."""
TARGETS = ("trainer 0", "trainer 1", "player", "environment worker", "video process", "launcher")
REPLACED = "replaced environment"
"""Place of faults in an environment worker with `env.on_fault: replace`."""
ENVIRONMENT_FAULTS = ("exception", "out of memory", "os._exit", "segfault", "hang", "NaN", "wrong shape")


@dataclass
class Result:
    """How a run with a fault ended."""

    fault: str
    place: str
    transport: str
    code: int
    restarts: int
    noticed: float | None
    """Seconds from the fault to the first message."""
    again: float | None
    """Seconds from the fault until all ranks were connected again."""
    equal: bool | None
    """True if the digest is that of the run without a fault; None if training did not end."""
    processes: int
    """Processes that were left 2 seconds after the end."""
    files: int
    """Files that were left in /dev/shm and in the folder of temporary files."""
    message: str
    """The last line on the standard error stream."""
    replaced: int = 0
    """Value of the metric `env_faults` at the end."""

    @property
    def key(self) -> tuple[str, str, str]:
        """The case."""
        return self.fault, self.place, self.transport


def inject(case: Case, name: str, place: str, transport: str, reference: str) -> Result:
    """Run a case, inject its fault, and say how it ended."""
    shared_before = {*Path("/dev/shm").iterdir()}
    launcher = case.start()
    if hasattr(signal, name):
        wait_until(lambda: len(case.rows()) >= FAULT_AT or launcher.poll() is not None, 120)
        began, before = time.time(), len(case.text())
        os.kill(case.find(place, launcher.pid), getattr(signal, name))
    elif name in DISK_FAULTS:
        wait_until(lambda: len(case.rows()) >= FAULT_AT or launcher.poll() is not None, 120)
        began, before = time.time(), len(case.text())
        DISK_FAULTS[name](case.run.parent)
    else:
        wait_until(lambda: case.mark.exists() or launcher.poll() is not None, 120)
        began, before = time.time(), 0
    spoken = wait_until(lambda: speaks(case.text()[before:]) or launcher.poll() is not None, 3 * TIMEOUT)
    noticed = time.time() - began if spoken and speaks(case.text()[before:]) else None
    if place == "launcher" and name == "SIGSTOP":
        time.sleep(2)
        os.kill(launcher.pid, signal.SIGCONT)
    if name.endswith("for a while"):
        repair(case.run.parent)
    if not wait_until(lambda: launcher.poll() is not None, 180):
        os.killpg(launcher.pid, signal.SIGKILL)
    code = launcher.wait()
    if place == "launcher" and name == "SIGKILL":  # nobody is left to start the ranks again
        wait_until(lambda: not case.processes(), 10)
        case.start(case.resume).wait(120)
    elif name in DISK_FAULTS and code and case.run.exists():
        repair(case.run.parent)
        case.start(case.resume).wait(120)
    time.sleep(0 if not case.processes() else 2)
    starts, digest, lines = case.starts(), case.digest(), case.text().strip().splitlines()
    files = len({*Path("/dev/shm").iterdir()} - shared_before) + len(list(case.temporary.iterdir()))
    again = starts[1] - began if len(starts) > 1 else None
    equal = digest == reference if digest else None
    return Result(
        *(name, place, transport, code, max(0, len(starts) - 1), noticed, again, equal, len(case.processes()), files),
        lines[-1] if lines else "",
        next((row.get("env_faults", 0) for row in reversed(case.rows())), 0),
    )


def speaks(text: str) -> bool:
    """Return True if a message about a fault is among the output."""
    return "lockstep: " in text or "the environment is replaced" in text


def cases(folder: Path) -> Iterator[tuple[Case, str, str, str]]:
    """Yield each run with its fault, the place of the fault and the transport."""
    count = 0
    replacing = ("--env.engine", "gymnasium-async", "--env.on-fault", "replace")
    for backend, transport in (("auto", "shared memory"), ("gloo", "gloo")):
        words = (*SPLIT, "--runtime.backend", backend)
        for name in ("SIGKILL", "SIGSTOP"):
            for target in TARGETS:
                count += 1
                engine = ("--env.engine", "gymnasium-async" if target == "environment worker" else "gymnasium")
                videos = ("--run.capture-video", "10") if target == "video process" else ()
                yield Case(folder, f"case-{count}", *words, *engine, *videos), name, target, transport
            count += 1
            yield Case(folder, f"case-{count}", *words, *replacing), name, REPLACED, transport
        for name in ENVIRONMENT_FAULTS:
            for place, engine in (
                ("player", ("--env.engine", "gymnasium")),
                ("environment worker", ("--env.engine", "gymnasium-async")),
                (REPLACED, replacing),
            ):
                count += 1
                options = {"kind": name, "at": 64 * FAULT_AT}
                case = Case(folder, f"case-{count}", *words, *engine, options=options)
                yield case, name, place, transport


def memory_cases(folder: Path) -> Iterator[tuple[Case, str, str, str]]:
    """Yield runs of two ranks, in one of which an environment takes all the memory that the rank may have."""
    limited = ("bash", "-c", 'ulimit -v 4000000; exec "$@"', "bash")
    for kind in ("out of memory", "memory held"):
        for backend, transport in (("auto", "shared memory"), ("gloo", "gloo")):
            words = ("--ranks", "2", "--runtime.backend", backend, "--env.engine", "gymnasium")
            options = {"kind": kind, "at": 64 * FAULT_AT}
            name = f"memory-{kind.split()[-1]}-{backend}"
            yield Case(folder, name, *words, options=options, prefix=limited), f"{kind}, ulimit", "rank", transport


def table(results: list[Result]) -> Iterator[str]:
    """Yield the rows of the table."""
    yield "| fault | in | transport | exit code | restarts | replaced | noticed | all ranks again | digest | left behind |"
    yield "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | --- | --- |"
    for result in results:
        digest = {True: "equal", False: "another" if result.replaced else "DIFFERENT", None: "–"}[result.equal]
        left = f"{result.processes} processes, {result.files} files" if result.processes or result.files else "nothing"
        times = [f"{seconds:.1f} s" if seconds is not None else "–" for seconds in (result.noticed, result.again)]
        cells = (
            result.fault,
            result.place,
            result.transport,
            result.code,
            result.restarts,
            result.replaced,
            *times,
            digest,
            left,
        )
        yield f"| {' | '.join(map(str, cells))} |"


def write(out: Path, results: list[Result], kills: dict[str, dict[str, float]]) -> None:
    """Write the results as JSON and as a page."""
    environment = describe_environment(2)
    out.write_text(f"{json.dumps({'results': [asdict(result) for result in results], 'kills': kills}, indent=1)}\n")
    lines = [
        "# Faults\n\n    python benchmarks/faults.py\n",
        f"A run of {ITERATIONS} iterations with one player and two trainers, `runtime.timeout` and `env.timeout` of {TIMEOUT} seconds, a checkpoint every",
        "5 iterations, and a fault in the middle. *Noticed*: from the fault to the first message. *All ranks again*: until the ranks of the next start were",
        "connected, which includes the import of PyTorch. An exit code of 1 without a restart is an error that would come back: the line names the",
        "environment. After the launcher was killed, and after a disk that stayed full or read-only was repaired, the run was resumed by hand.",
        f"A *{REPLACED}* is a worker with `env.on_fault: replace`. One that is silent is killed after half of `runtime.timeout`. Its run continues without",
        "the unfinished episode, so its digest is another one. With *ulimit*, an environment of one of two ranks takes all the memory that its rank",
        "may have; *held*: it keeps the memory and continues, so that the rank itself runs out of it.",
        f"Processor: {environment.get('processor', 'unknown')}, PyTorch {environment['packages']['torch']}.\n",  # type: ignore[index]
        *table(results),
    ]
    if kills:
        lines += ["\n## Kills at random moments\n\nA checkpoint after every iteration.", *kills_table(kills)]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    parser.add_argument("--only", default="", help="run the cases whose name contains this text")
    parser.add_argument("--out", type=Path, default=HERE / "faults.json")
    args = parser.parse_args()
    stored = json.loads(args.out.read_text()) if args.out.exists() else {"results": [], "kills": {}}
    results, kills = [Result(**result) for result in stored["results"]], stored["kills"]
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        inject_all(folder, args, results, kills)
        for part, work in {
            "kills": lambda: kill_and_resume(folder, KILLS),
            "stored": lambda: kill_stored(folder, STORED_KILLS),
            "supervised": lambda: kill_supervised(folder, SUPERVISED_KILLS),
            "soak": lambda: soak(folder, SOAK),
            "steady": lambda: soak(folder, SOAK, kills_ranks=False),
        }.items():
            if part in args.parts:
                kills["resumed" if part == "kills" else part] = work()
                print(json.dumps(kills), flush=True)
                write(args.out, results, kills)


def inject_all(
    folder: Path, args: argparse.Namespace, results: list[Result], kills: dict[str, dict[str, float]]
) -> None:
    """Run the cases of the chosen parts, and put their results in place of earlier ones."""
    chosen = [
        part(folder)
        for name, part in (("matrix", cases), ("memory", memory_cases), ("disk", disk_cases))
        if name in args.parts
    ]
    if not chosen:
        return
    whole = Case(folder, "whole", "--ranks", "1", "--env.engine", "gymnasium")
    if whole.start().wait():
        sys.exit(whole.text())
    for case, fault, place, transport in itertools.chain(*chosen):
        if args.only in f"{fault} {place} {transport}":
            result = inject(case, fault, place, transport, whole.digest())
            print(list(table([result]))[-1], result.message, flush=True)
            keys = [other.key for other in results]
            if result.key in keys:
                results[keys.index(result.key)] = result
            else:
                results.append(result)
            write(args.out, results, kills)
        shutil.rmtree(case.run, ignore_errors=True)


if __name__ == "__main__":
    main()

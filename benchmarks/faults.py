"""Inject faults into runs, and write how each run ended to benchmarks/faults.json and faults.md, after every case.

    python benchmarks/faults.py [--only TEXT] [--kills N] [--out benchmarks/faults.json]

Every case trains CartPole with one player and two trainers, injects a fault in the middle, and compares the final digest with that of a run
without faults. `--only` runs the cases whose name contains the text. `--kills` is the number of SIGKILLs at random moments: of one rank of
a run that is supervised, and of all processes of a run, which is then resumed.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lockstep.run.environment import describe_environment
from lockstep.run.manifest import verify

HERE = Path(__file__).parent
TIMEOUT = 5
WORDS = (
    *("--env", "Faulty-v0", "--env.module", "faulty_env", "--env.count", "8", "--env.timeout", str(TIMEOUT)),
    *("--rollout.steps", "64", "--plan.shards", "2", "--runtime.compile", "off", "--run.progress", "off"),
    *("--runtime.timeout", str(TIMEOUT)),
)
EVERY = ("--run.checkpoint-every", "1")
SPLIT = ("--plan", "1:2", "--ranks", "3")
ITERATIONS = 40
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


class Case:
    """A run in a folder of its own."""

    def __init__(self, folder: Path, name: str, *words: str, options: Mapping[str, object] | None = None) -> None:
        self.folder, self.run, self.mark = folder, folder / "runs" / name, folder / f"{name}.mark"
        self.temporary = folder / f"{name}.tmp"
        self.temporary.mkdir()
        given = {"mark": str(self.mark), **(options or {})}
        steps = () if "--total-steps" in words else ("--total-steps", str(8 * 64 * ITERATIONS))
        self.command = [
            *(sys.executable, "-m", "lockstep", "train", *WORDS, *steps),
            *("--env.options", json.dumps(given), "--out", str(self.run.parent), "--name", name, *words),
            *(() if "--run.checkpoint-every" in words else ("--run.checkpoint-every", "5")),
        ]

    def start(self, command: list[str] | None = None) -> "subprocess.Popen[str]":
        """Start the command in a session of its own."""
        environment = {**os.environ, "PYTHONPATH": str(HERE), "TMPDIR": str(self.temporary)}
        self.errors = (self.folder / f"{self.run.name}.err").open("a+")
        return subprocess.Popen(
            command or self.command,
            env=environment,
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=self.errors,
            text=True,
            start_new_session=True,
        )

    def text(self) -> str:
        """Return what the command has written to its standard error stream."""
        return Path(self.errors.name).read_text(errors="replace")

    def rows(self) -> list[dict[str, Any]]:
        """Return the metrics of all iterations so far."""
        path = self.run / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def digest(self) -> str:
        """Return the digest of the last iteration."""
        rows = self.rows()
        return str(rows[-1]["digest"]) if rows and rows[-1]["iteration"] == ITERATIONS else ""

    def starts(self) -> list[float]:
        """Return the times at which all ranks were connected, in seconds since the epoch."""
        path = self.run / "starts.jsonl"
        entries = map(json.loads, path.read_text().splitlines()) if path.exists() else []
        return [datetime.fromisoformat(entry["time"]).timestamp() for entry in entries if entry["event"] == "start"]

    def processes(self) -> dict[int, list[str]]:
        """Return the command lines of all live processes whose environment has the folder of this run."""
        found = {}
        for path in Path("/proc").glob("[0-9]*"):
            try:
                state = path.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                variables = path.joinpath("environ").read_bytes().split(b"\0")
                if state not in "ZX" and f"TMPDIR={self.temporary}".encode() in variables:
                    found[int(path.name)] = path.joinpath("cmdline").read_text().split("\0")
            except OSError:
                continue
        return found

    def find(self, target: str, launcher: int) -> int:
        """Return the process of a role."""
        if target == "launcher":
            return launcher
        processes = self.processes()
        if target == "video process":
            return next(number for number, words in processes.items() if "video" in words)
        found = [number for number, words in processes.items() if "rank" in words]
        if target in ("environment worker", REPLACED):
            return next(number for number in found if parent_of(number) in found)
        ranks = {rank_of(number): number for number in found if parent_of(number) == launcher}
        return ranks[{"trainer 0": 0, "trainer 1": 1, "player": 2}[target]]


def rank_of(process: int) -> int:
    """Return the number of a rank, from its environment variables."""
    variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
    return next((int(text.partition(b"=")[2]) for text in variables if text.startswith(b"LOCKSTEP_RANK=")), -1)


def parent_of(process: int) -> int:
    """Return the id of the parent of a process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def wait_until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait until the condition holds; return False after so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def inject(case: Case, name: str, place: str, transport: str, reference: str) -> Result:
    """Run a case, inject its fault, and say how it ended."""
    shared_before = {*Path("/dev/shm").iterdir()}
    launcher = case.start()
    if hasattr(signal, name):
        wait_until(lambda: len(case.rows()) >= FAULT_AT or launcher.poll() is not None, 120)
        began, before = time.time(), len(case.text())
        os.kill(case.find(place, launcher.pid), getattr(signal, name))
    else:
        wait_until(lambda: case.mark.exists() or launcher.poll() is not None, 120)
        began, before = time.time(), 0
    spoken = wait_until(lambda: speaks(case.text()[before:]) or launcher.poll() is not None, 3 * TIMEOUT)
    noticed = time.time() - began if spoken and speaks(case.text()[before:]) else None
    if place == "launcher" and name == "SIGSTOP":
        time.sleep(2)
        os.kill(launcher.pid, signal.SIGCONT)
    if not wait_until(lambda: launcher.poll() is not None, 180):
        os.killpg(launcher.pid, signal.SIGKILL)
    code = launcher.wait()
    if place == "launcher" and name == "SIGKILL":  # nobody is left to start the ranks again
        wait_until(lambda: not case.processes(), 10)
        command = [sys.executable, "-m", "lockstep", "resume", str(case.run), "--env.module", "faulty_env"]
        case.start(command).wait(120)
    time.sleep(0 if not case.processes() else 2)
    starts, digest, lines = case.starts(), case.digest(), case.text().strip().splitlines()
    files = len({*Path("/dev/shm").iterdir()} - shared_before) + len(list(case.temporary.iterdir()))
    again = starts[1] - began if len(starts) > 1 else None
    equal = digest == reference if digest else None
    return Result(
        *(name, place, transport, code, len(starts) - 1, noticed, again, equal, len(case.processes()), files),
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


def random_kills(folder: Path, kills: int, reference: str) -> dict[str, object]:
    """Kill ranks of a supervised run at random moments; then kill all processes of another run, and resume it after each."""
    generator = random.Random(1)
    longer = ("--total-steps", str(8 * 64 * 20 * ITERATIONS), *EVERY)
    whole = Case(folder, "longer", *longer, "--ranks", "1")
    whole.start().wait()
    case = Case(folder, "supervised", *longer, "--ranks", "2", "--restarts", "1000")
    launcher, done = case.start(), 0
    while launcher.poll() is None and done < kills // 3:
        seen = len(case.rows())
        wait_until(lambda: launcher.poll() is not None or len(case.rows()) > seen, 60)  # noqa: B023
        time.sleep(generator.uniform(0, 2))
        ranks = [number for number, line in case.processes().items() if "rank" in line]
        if ranks and launcher.poll() is None:
            os.kill(generator.choice(ranks), signal.SIGKILL)
            done += 1
    code = launcher.wait(600)
    supervised = {
        "kills": done,
        "code": code,
        "starts": len(case.starts()),
        "equal": case.rows()[-1]["digest"] == whole.rows()[-1]["digest"],
    }
    print(json.dumps(supervised), flush=True)
    return {"supervised": supervised, "resumed": kill_and_resume(folder, kills, generator, reference)}


def kill_and_resume(folder: Path, kills: int, generator: random.Random, reference: str) -> dict[str, object]:
    """Kill all processes of a run at random moments, check its newest checkpoint and its metrics, and resume it."""
    done = broken = lost = runs = 0
    different = 0
    while done < kills:
        runs += 1
        case = Case(folder, f"resumed-{runs}", *EVERY, "--ranks", "2", "--restarts", "0")
        command = case.command
        while done < kills:
            process = case.start(command)
            wait_until(lambda process=process: process.poll() is not None, generator.uniform(1.0, 5.0))
            if process.poll() is not None:
                break
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            done += 1
            wait_until(lambda case=case: not case.processes(), 10)
            checkpoints = sorted((case.run / "checkpoints").glob("[0-9]*")) if case.run.exists() else []
            rows = [row["iteration"] for row in case.rows()]
            lost += rows != list(range(1, len(rows) + 1))
            lost += bool(checkpoints) and int(checkpoints[-1].name) > len(rows)
            try:
                broken += bool(checkpoints) and not verify(checkpoints[-1])
            except ValueError:
                broken += 1
            if (case.run / "config.json").exists():
                command = [sys.executable, "-m", "lockstep", "resume", str(case.run), "--env.module", "faulty_env"]
                command += ["--ranks", "2", "--restarts", "0"]
            else:
                shutil.rmtree(case.run, ignore_errors=True)
        different += bool(case.digest()) and case.digest() != reference
    return {"kills": done, "runs": runs, "broken": broken, "lost": lost, "different": different}


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


def write(out: Path, results: list[Result], kills: dict[str, object]) -> None:
    """Write the results as JSON and as a page."""
    environment = describe_environment(2)
    out.write_text(f"{json.dumps({'results': [asdict(result) for result in results], 'kills': kills}, indent=1)}\n")
    lines = [
        "# Faults\n\n    python benchmarks/faults.py --kills 200\n",
        f"A run of {ITERATIONS} iterations with one player and two trainers, `runtime.timeout` and `env.timeout` of {TIMEOUT} seconds, a checkpoint every",
        "5 iterations, and a fault in the middle. *Noticed*: from the fault to the first message. *All ranks again*: until the ranks of the next start were",
        "connected, which includes the import of PyTorch. An exit code of 1 without a restart is an error that would come back: the line names the",
        "environment. After the launcher was killed, the run was resumed by hand. Tests ran on the same cores, which makes some times longer.",
        f"A *{REPLACED}* is a worker with `env.on_fault: replace`. One that is silent is killed after half of `runtime.timeout`. Its run goes on without",
        "the unfinished episode, so its digest is another one.",
        f"Processor: {environment.get('processor', 'unknown')}, PyTorch {environment['packages']['torch']}.\n",  # type: ignore[index]
        *table(results),
    ]
    if kills:
        lines += [
            "\n## Kills at random moments\n",
            "A checkpoint after every iteration.\n",
            "```json",
            json.dumps(kills, indent=1),
            "```",
        ]
    out.with_suffix(".md").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--only", default="", help="run the cases whose name contains this text, and keep the other results"
    )
    parser.add_argument("--kills", type=int, default=0, help="number of SIGKILLs at random moments")
    parser.add_argument("--out", type=Path, default=HERE / "faults.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as name:
        folder = Path(name)
        whole = Case(folder, "whole", "--ranks", "1", "--env.engine", "gymnasium")
        if whole.start().wait():
            sys.exit(whole.text())
        reference = whole.digest()
        stored = json.loads(args.out.read_text()) if args.only and args.out.exists() else {"results": [], "kills": {}}
        results, kills = [Result(**result) for result in stored["results"]], stored["kills"]
        for case, fault, place, transport in cases(folder):
            if args.only in f"{fault} {place} {transport}":
                result = inject(case, fault, place, transport, reference)
                print(list(table([result]))[-1], result.message, flush=True)
                places = {other.key: place for place, other in enumerate(results)}
                place = places.get(result.key, len(results))
                results = [*results[:place], result, *results[place + 1 :]]
                write(args.out, results, kills)
            shutil.rmtree(case.run, ignore_errors=True)
        if args.kills:
            kills = random_kills(folder, args.kills, reference)
            print(json.dumps(kills), flush=True)
            write(args.out, results, kills)


if __name__ == "__main__":
    main()

"""Measure how long runs under Slurm, Ray and torchrun need to notice the loss of a rank or a host, and to train again.

    python benchmarks/engine_faults.py [--only TEXT] [--repeats 3] [--out benchmarks/engine_faults.json]

As root, with iproute2, Slurm and Ray; engines that are not installed are left out. Every case trains CartPole with 4 shards and a checkpoint after every
iteration, injects a fault after 20 iterations, and compares all digests with those of one process. Slurm has two nodes and Ray two raylets on this
host; torchrun runs on two network namespaces that are connected by a virtual cable.
"""

import argparse
import json
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).parents[1]))  # for `tests`

from namespaces import Host, available, run_ip, two_hosts
from tests.clusters.slurm_cluster import running_cluster
from tests.live_runs import digests, processes_with, reached, rows, slow_hook, wait_for

from lockstep.run.environment import processor_type
from lockstep.run.folder import RunFolder
from lockstep.telemetry.attempts import read_starts

FAULT_AT, ITERATIONS = 20, 150
TIMEOUT = 10
WORDS = (
    *(
        "train",
        "cartpole",
        "--plan.shards",
        "4",
        "--env.count",
        "4",
        "--rollout.steps",
        "64",
        "--runtime.compile",
        "off",
    ),
    *("--run.checkpoint-every", "1", "--total-steps", str(4 * 64 * ITERATIONS), "--runtime.timeout", str(TIMEOUT)),
    *("--run.progress", "off", "--name", "run"),
)
HOST = "BENCHMARK_HOST"
"""Environment variable of the processes of a host: its name."""
CABLE_OUT = 20.0
"""Seconds for which the cable is unplugged. `runtime.timeout` is three times as long in this case."""


class Running(NamedTuple):
    """A run in training."""

    outputs: Sequence[Path]
    hit: Callable[[], object]
    """Inject the fault."""
    restarts: bool
    """False if the same ranks go on."""


def environ(folder: Path) -> dict[str, str]:
    """Return the environment variables of a run whose hook is in `folder`."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1] / "src"), str(folder)])}


def command(*words: str) -> list[str]:
    """Return a command of lockstep."""
    return [sys.executable, "-m", "lockstep", *words]


def begin(folder: Path, name: str, words: Sequence[str], **more: str) -> "subprocess.Popen[bytes]":
    """Start a program in a folder, with its output in the file `name`."""
    with (folder / name).open("wb") as output:
        return subprocess.Popen(words, cwd=folder, env=environ(folder) | more, stdout=output, stderr=output)


def kill(process: int) -> None:
    """Kill a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)


@contextmanager
def slurm(folder: Path, fault: str) -> Iterator[Running]:
    """Train on two nodes of Slurm."""
    run, log = folder / "runs" / "run", folder / "runs" / "run" / "job" / "slurm.log"
    with running_cluster() as cluster:
        words = (*WORDS, *slow_hook(folder), "--on", "slurm", "--ranks", "2:4", "--job", "nodes=2")
        submitted = subprocess.run(
            command(*words),
            cwd=folder,
            env=environ(folder) | cluster.environ,
            capture_output=True,
            text=True,
            check=True,
        )
        job = submitted.stdout.split()[2]
        hits: dict[str, Callable[[], object]] = {
            "a rank is killed": lambda: kill(ranks(run)[-1]),
            "a node is lost": lambda: cluster.kill_node("b"),
            "the job is put back into the queue": lambda: cluster.run("scontrol", "requeue", job),
        }
        yield Running([log], hits[fault], True)
        wait_for(lambda: cluster.state(job) == "COMPLETED", "the end of the job", 300)


@contextmanager
def ray(folder: Path, fault: str) -> Iterator[Running]:
    """Train on two raylets."""
    from ray.cluster_utils import Cluster

    os.environ.update(RAY_worker_niceness="0")
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    node = cluster.add_node(num_cpus=2)
    try:
        words = (*WORDS, *slow_hook(folder), "--on", "ray", "--ranks", "2:4", "--job", f"address={cluster.address}")
        driver = begin(folder, "log", command(*words))
        hits: dict[str, Callable[[], object]] = {
            "a rank is killed": lambda: kill(ranks(folder / "runs" / "run")[-1]),
            "a raylet is lost": lambda: cluster.remove_node(node, allow_graceful=False),
        }
        yield Running([folder / "log"], hits[fault], True)
        if driver.wait(300):
            raise SystemExit((folder / "log").read_text())
    finally:
        cluster.shutdown()


@contextmanager
def torchrun(folder: Path, fault: str) -> Iterator[Running]:
    """Train with two ranks on each of two hosts; a single host is enough."""
    with two_hosts() as hosts:
        agents = [start_agent(host, folder, fault) for host in hosts]
        logs = [folder / host.name for host in hosts]

        def lose_host() -> None:
            for process in processes_on(hosts[1]):
                kill(process)

        def pull_cable() -> None:
            run_ip("-n", hosts[1].name, "link", "set", hosts[1].cable, "down")
            time.sleep(CABLE_OUT)
            run_ip("-n", hosts[1].name, "link", "set", hosts[1].cable, "up")

        hits: dict[str, Callable[[], object]] = {
            "a rank is killed": lambda: kill(processes_on(hosts[1], "LOCAL_RANK=1")[0]),
            "a host is lost": lose_host,
            f"the cable is out for {CABLE_OUT:g} s": pull_cable,
        }
        yield Running(logs, hits[fault], "cable" not in fault)
        if agents[0].wait(300):
            raise SystemExit(logs[0].read_text())
        for agent in agents:
            agent.kill()
            agent.wait()


def start_agent(host: Host, folder: Path, fault: str) -> "subprocess.Popen[bytes]":
    """Start torchrun on a host."""
    rendezvous = (
        "--rdzv-backend",
        "c10d",
        "--rdzv-endpoint",
        "10.213.8.1:29400",
        "--rdzv-id",
        "run",
        "--local-addr",
        host.address,
    )
    elastic = ("--nnodes", "1:2", "--max-restarts", "3", "--nproc-per-node", "2", *rendezvous)
    words = [*WORDS, *slow_hook(folder), "--resume"]
    if "cable" in fault:
        words[words.index("--runtime.timeout") + 1] = str(3 * CABLE_OUT)
    agent = (*host.command, sys.executable, "-m", "torch.distributed.run", *elastic, "-m", "lockstep", *words)
    return begin(folder, host.name, agent, GLOO_SOCKET_IFNAME=host.cable, **{HOST: host.name})


def processes_on(host: Host, *variables: str) -> list[int]:
    """Return the ids of the processes of a host that have these environment variables, `NAME=VALUE`."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            have = (process / "environ").read_bytes().split(b"\0")
            if {word.encode() for word in (f"{HOST}={host.name}", *variables)} <= set(have):
                found.append(int(process.name))
    return found


def ranks(run: Path) -> list[int]:
    """Return the ids of the ranks of a run that Slurm or Ray has started."""
    return processes_with(f"file://{run}/job/rendezvous")


CASES: dict[str, tuple[Callable[[Path, str], Any], str]] = {
    f"{engine.__name__}, {fault}": (engine, fault)
    for engine, faults in (
        (slurm, ("a rank is killed", "a node is lost", "the job is put back into the queue")),
        (ray, ("a rank is killed", "a raylet is lost")),
        (torchrun, ("a rank is killed", "a host is lost", f"the cable is out for {CABLE_OUT:g} s")),
    )
    for fault in faults
}


def measure(case: str, alone: list[str]) -> dict[str, object]:
    """Run a case once."""
    engine, fault = CASES[case]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run = RunFolder(folder / "runs" / "run")
        with engine(folder, fault) as running:
            wait_for(reached(run.path, FAULT_AT), "the iteration of the fault", 200)
            sizes = [path.stat().st_size for path in running.outputs]
            starts, began = len(read_starts(run)), time.monotonic()
            running.hit()
            done = len(rows(run.path))
            noticed = again = None
            while again is None:
                now = time.monotonic() - began
                grown = any(path.stat().st_size > size for path, size in zip(running.outputs, sizes, strict=True))
                if noticed is None and grown:
                    noticed = now
                if len(read_starts(run)) > starts if running.restarts else len(rows(run.path)) > done + 1:
                    again = now
                if now > 200:
                    raise SystemExit(
                        f"{case}: no rank trains again\n" + "\n".join(path.read_text() for path in running.outputs)
                    )
                time.sleep(0.02)
        return {"case": case, "noticed": noticed, "again": again, "equal": digests(run.path) == alone}


def reference() -> list[str]:
    """Return the digests of one process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run(
            command(*WORDS, "--ranks", "1"), cwd=folder, env=environ(folder), check=True, capture_output=True
        )
        return digests(folder / "runs" / "run")


def page(result: dict[str, Any]) -> str:
    """Return the text of engine_faults.md."""
    lines = [
        "# Faults under Slurm, Ray and torchrun",
        "",
        "    python benchmarks/engine_faults.py",
        "",
        "A run of CartPole with 4 ranks on two hosts, `runtime.timeout` of 10 seconds, and a checkpoint after every iteration. *Noticed*: from the fault to the first",
        "line of output. *All ranks again*: until the ranks of the next start, which are 2 after the loss of a host, were connected; this includes the time in which the",
        "engine itself waits, and the import of PyTorch. While the cable is out, nothing is printed, and `runtime.timeout` is 60 seconds: the same ranks go on, and the",
        "time is that until the second iteration after the fault. Medians of the repeats, with minimum and maximum. The digests of all iterations are compared with",
        f"those of one process. Other programs ran at the same time. {result['cores']} cores of {result['processor']}, PyTorch {result['torch']}.",
        "",
        "| engine, fault | repeats | noticed | all ranks again | digests |",
        "| --- | ---: | --- | --- | --- |",
    ]
    for case in CASES:
        runs = [run for run in result["runs"] if run["case"] == case]
        if runs:
            noticed, again = (
                _span([run[name] for run in runs if run[name] is not None]) for name in ("noticed", "again")
            )
            equal = "equal" if all(run["equal"] for run in runs) else "**another**"
            lines.append(f"| {case} | {len(runs)} | {noticed} | {again} | {equal} |")
    return "\n".join([*lines, ""])


def _span(values: Sequence[float]) -> str:
    if not values:
        return "–"
    median = f"{statistics.median(values):.1f} s"
    return median if len(values) == 1 else f"{median} ({min(values):.1f} … {max(values):.1f})"


def main() -> None:
    """Measure the cases and write both files after every run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    installed = {"slurm": bool(shutil.which("slurmctld")), "ray": find_spec("ray") is not None, "torchrun": available()}
    cases = [case for case in CASES if arguments.only in case and installed[case.partition(",")[0]]]
    result: dict[str, Any] = {"runs": []}
    if arguments.out.exists():
        result = json.loads(arguments.out.read_text())
    result |= {
        "processor": processor_type(False),
        "cores": os.cpu_count(),
        "torch": version("torch"),
        "python": platform.python_version(),
    }
    result["runs"] = [run for run in result["runs"] if run["case"] not in cases]
    alone = reference()
    for _ in range(arguments.repeats):
        for case in cases:
            result["runs"].append(run := measure(case, alone))
            print(run, flush=True)
            arguments.out.write_text(json.dumps(result, indent=1) + "\n")
            arguments.out.with_suffix(".md").write_text(page(result))


if __name__ == "__main__":
    main()

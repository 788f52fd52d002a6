"""Compare predictions of `lockstep bench simulate` with measurements, and with the published scaling of DD-PPO.

    python benchmarks/simulate.py [--repeats 3] [--seconds 4]      # 4 minutes per repeat; root, for the case with two hosts

A repeat measures, for every workload, more ranks, shared memory and gloo, split plans, and two network namespaces as two hosts. Before each of these
cases, the workload is trained on one rank, which predicts the case: the speed of a virtual machine changes within minutes. Writes benchmarks/simulate.json, benchmarks/simulate.md and docs/simulate.png.
"""

import argparse
import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import ddppo
from namespaces import ADDRESSES, Host, available, two_hosts

from lockstep.algorithm.plan import PlanConfig
from lockstep.bench.simulation.network import NETWORKS, Cluster
from lockstep.bench.simulation.prediction import MOST_RANKS, predict_all
from lockstep.bench.simulation.workload import Workload, read_workload
from lockstep.bench.training import default_warmup
from lockstep.experiment.execute import open_run
from lockstep.report.style import COLORS, saved_figure

HERE = Path(__file__).parent
CORES = 2
GOAL = 0.15
"""Wanted relative error of the time of an iteration."""
UNDISTURBED = 0.05
"""Largest fraction of the cores that other programs may use during a run that counts, unless there is no other."""
SHARDS = 4
CURVES = ("10gbe", "100gbe")
"""Networks of the predicted curves."""
TITLES = {"small": "9,155 parameters", "large": "534,532 parameters"}


class Task(NamedTuple):
    """A workload: its environments use one thread, and all shards have the same size."""

    flags: str
    environments: int
    """Number of environments of a shard."""
    steps: int


ONCE = "--ppo.no-recompute-advantages"
WORKLOADS = {
    "small": Task(
        f"--env CartPole-v1 --ppo.epochs 4 --ppo.minibatches 4 {ONCE} --env.engine gymnasium-vector", 16, 128
    ),
    "large": Task(
        f"--env Acrobot-v1 --ppo.epochs 2 --ppo.minibatches 2 --policy.hidden 512 512 {ONCE} --env.engine gymnasium",
        4,
        64,
    ),
}
"""Two networks of 64 × 64 units, whose gradients are gathered, and of 512 × 512 units, whose gradients are added in slices."""


@dataclass(frozen=True)
class Case:
    """A plan that is measured and predicted."""

    name: str
    ranks: int
    flags: str = ""
    hosts: int = 1

    def plan(self) -> PlanConfig:
        """Return the plan to predict."""
        words = self.flags.split()
        values = dict(zip(words[::2], words[1::2], strict=True))
        return PlanConfig(kind=values.get("--plan", "coupled"), lag=int(values.get("--plan.lag", 0)))

    def cluster(self) -> Cluster:
        """Return the hosts. Two hosts on this machine have a core each, and the network between them is that of the machine itself."""
        cores = CORES // self.hosts
        return Cluster(self.ranks // self.hosts, cores, NETWORKS["loopback"], "gloo" not in self.flags)


CASES = (
    Case("2 ranks, shared memory", 2),
    Case("4 ranks, shared memory", 4),
    Case("2 ranks, gloo", 2, "--runtime.backend gloo"),
    Case("4 ranks, gloo", 4, "--runtime.backend gloo"),
    Case("1 player, 1 trainer, lag 0", 2, "--plan 1:1"),
    Case("1 player, 1 trainer, lag 1", 2, "--plan 1:1 --plan.lag 1"),
    Case("2 hosts of 1 rank, gloo", 2, hosts=2),
)


def train(
    workload: str,
    folder: Path,
    ranks: int,
    flags: str,
    iterations: int,
    hosts: Sequence[Host] | None = None,
    shards: int = SHARDS,
    compiled: bool = False,
) -> None:
    """Train a run named `run` in `folder`. `hosts` are those of ranks 0, 1, …; None: this host."""
    task = WORKLOADS[workload]
    environments = shards * task.environments
    words = [sys.executable, "-m", "lockstep", "train", *task.flags.split(), *flags.split()]
    words += ["--env.count", str(environments), "--rollout.steps", str(task.steps), "--plan.shards", str(shards)]
    words += ["--total-steps", str(iterations * environments * task.steps), "--run.checkpoint-every", "1000000"]
    words += ["--out", str(folder), "--name", "run", "--run.progress", "off"]
    words += ["--runtime.compile", "on" if compiled else "off"]
    if hosts is None:
        commands = [(["nice", "-n", "10", *words, "--ranks", str(ranks)], dict(os.environ))]
    else:
        words += ["--runtime.rendezvous", f"tcp://{ADDRESSES[0]}:29533"]
        variables = {"WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        commands = [
            ([*host.command, "nice", "-n", "10", *words], {**os.environ, **variables, "RANK": str(rank)})
            for rank, host in enumerate(hosts)
        ]
    processes = [subprocess.Popen(command, env=environment) for command, environment in commands]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"{workload}: {flags or ranks} failed")


def busy_seconds() -> tuple[float, float]:
    """Return the seconds that all cores have computed since the start of the machine, and those of the finished children of this process."""
    columns = list(map(int, Path("/proc/stat").read_text().splitlines()[0].split()[1:]))
    idle = columns[3] + columns[4]
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (sum(columns[:8]) - idle) / os.sysconf("SC_CLK_TCK"), children.ru_utime + children.ru_stime


def measured_seconds(run: Path) -> float:
    """Return the mean time of an iteration after the warm-up."""
    rows = open_run(run)[0].metrics()
    return statistics.fmean(float(str(row["t_iter"])) for row in rows[default_warmup(len(rows)) :])


def others_share(workload: str, folder: Path, case: Case, iterations: int, hosts: Sequence[Host] | None) -> float:
    """Train a case. Return the fraction of the cores that other programs used meanwhile."""
    start, before = time.perf_counter(), busy_seconds()
    train(workload, folder, case.ranks, case.flags, iterations, hosts if case.hosts > 1 else None)
    elapsed, after = time.perf_counter() - start, busy_seconds()
    return max(0.0, after[0] - before[0] - (after[1] - before[1])) / elapsed / CORES


class Comparison(NamedTuple):
    """One run and its prediction, in seconds per iteration."""

    measured: float
    predicted: float
    others: float
    """Fraction of the cores that other programs used during the run, or during that on one rank, whichever is larger."""


def compare(repeats: int, seconds: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Measure and predict all cases. Return a row per workload and case, and the predicted curves of both workloads."""
    found: dict[tuple[str, str], list[Comparison]] = {}
    predicted = []
    with two_hosts() if available() else nullcontext() as hosts, tempfile.TemporaryDirectory() as temporary:
        for workload in WORKLOADS:
            first = Path(temporary) / workload
            train(workload, first, 1, "", 12)  # shows how many iterations are needed
            iterations = max(20, int(seconds / measured_seconds(first / "run")))
            loads: list[tuple[float, int, Workload]] = []
            cases = [Case("1 rank, again", 1), *(case for case in CASES if case.hosts == 1 or hosts)]
            for repeat, (number, case) in itertools.product(range(repeats), enumerate(cases)):
                folder = Path(temporary) / f"{workload}-{repeat}-{number}"
                before = others_share(workload, folder / "1", Case("1 rank", 1), iterations, None)
                base, config = open_run(folder / "1" / "run")
                load = read_workload(base, config)[0]
                loads.append((before, len(loads), load))
                others = max(before, others_share(workload, folder / "case", case, iterations, hosts))
                [row] = predict_all(load, case.plan(), [case.ranks], case.cluster(), False, repeat)
                comparison = Comparison(measured_seconds(folder / "case" / "run"), row.iteration_seconds, others)
                found.setdefault((workload, case.name), []).append(comparison)
                print(f"{workload:<6} {case.name:<28} {comparison}", flush=True)
            predicted += curves(workload, min(loads)[2])  # of the least disturbed run
    rows = [
        {
            "workload": workload,
            "case": case,
            "measured_ms": [round(each.measured * 1e3, 2) for each in comparisons],
            "predicted_ms": [round(each.predicted * 1e3, 2) for each in comparisons],
            "other_programs": [round(each.others, 3) for each in comparisons],
            "undisturbed": sum(each.others <= UNDISTURBED for each in comparisons),
            "error": statistics.median(each.predicted / each.measured - 1 for each in least_disturbed(comparisons)),
        }
        for (workload, case), comparisons in found.items()
    ]
    return rows, predicted


def least_disturbed(comparisons: Sequence[Comparison]) -> Sequence[Comparison]:
    """Return the comparisons without other programs; all of them if there are none."""
    return [each for each in comparisons if each.others <= UNDISTURBED] or comparisons


def optimizer_steps(repeats: int) -> list[dict[str, Any]]:
    """Measure the part of a gradient step that does not depend on the shards of a rank: the intercept over 1 and 4 shards of one size."""
    rows = []
    with tempfile.TemporaryDirectory() as temporary:
        for workload, compiled in (("small", False), ("large", False), ("small", True)):
            found = []
            for repeat in range(repeats):
                seconds = {}
                for shards in (1, SHARDS):
                    folder = Path(temporary) / f"{workload}-{compiled}-{shards}-{repeat}"
                    train(workload, folder, 1, "", 30, shards=shards, compiled=compiled)
                    load = read_workload(*open_run(folder / "run"))[0]
                    # without the split that `read_workload` assumes
                    learn = shards * load.costs.learn + load.updates * load.optimizer_step
                    seconds[shards] = float(learn.min()) / load.updates  # the minimum is not affected by other programs
                found.append((SHARDS * seconds[1] - seconds[SHARDS]) / (SHARDS - 1))
            rows.append(
                {
                    "workload": workload,
                    "compiled": compiled,
                    "parameters": load.parameters,
                    "assumed_us": round(load.optimizer_step * 1e6, 1),
                    "measured_us": [round(value * 1e6, 1) for value in found],
                }
            )
            print(rows[-1], flush=True)
    return rows


def curves(workload: str, load: Workload) -> list[dict[str, Any]]:
    """Predict weak scaling up to 4,096 ranks on hosts of 64 cores, where every rank has the shards of the measured run."""
    ranks = [2**power for power in range(MOST_RANKS.bit_length())]
    return [
        {
            "workload": workload,
            "network": name,
            "ranks": row.ranks,
            "efficiency": row.efficiency,
            "bottleneck": row.bottleneck,
        }
        for name in CURVES
        for row in predict_all(load, PlanConfig(), ranks, Cluster(64, 64, NETWORKS[name]), True, 0)
    ]


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draw the efficiency of both workloads over the number of ranks."""
    with saved_figure(path, 10, 4) as (_, figure):
        panels = figure.subplots(1, len(WORKLOADS), sharey=True)
        for axes, workload in zip(panels, WORKLOADS, strict=True):
            for color, name in zip(COLORS, CURVES, strict=False):
                points = [
                    (row["ranks"], row["efficiency"])
                    for row in rows
                    if (row["workload"], row["network"]) == (workload, name)
                ]
                axes.plot(*zip(*points, strict=True), color=color, marker="o", markersize=4, linewidth=2, label=name)
            axes.set_xscale("log", base=2)
            axes.set(title=TITLES[workload], xlabel="ranks, 64 on a host", ylim=(0, 1.05))
        panels[0].set_ylabel("efficiency")
        panels[0].legend(frameon=False, loc="lower left")


def report(result: dict[str, Any]) -> str:
    """Return benchmarks/simulate.md."""
    inside = [row for row in result["cases"] if abs(row["error"]) <= GOAL]
    lines = [
        "# Predictions compared with measurements",
        "",
        "    python benchmarks/simulate.py             # about 20 minutes; writes benchmarks/simulate.json and .md",
        "",
        "`lockstep bench simulate` predicts the time of an iteration from a run on 1 rank. The table has this prediction, and what was measured: medians of",
        f"{result['repeats']} repeats, with minimum and maximum. The error is the median of predicted / measured - 1 over the repeats in which other programs used at most 5% of the cores (all repeats if there are none); the goal is {GOAL:.0%}. Every measurement",
        f"follows a run on 1 rank of its own. {result['cores']} cores of {result['processor']}, PyTorch {result['torch']}. 4 ranks share the cores, and the two hosts are network",
        "namespaces of the same machine.",
        "",
        f"{len(inside)} of {len(result['cases'])} cases are within the goal. The last column is the fraction of the cores that other programs used. The",
        f"machine had a load of {result['load_before']} before the measurements and {result['load_after']} after them, and the runs had a lower priority (nice 10).",
        "",
        *([] if "note" not in result else [result["note"], ""]),
        "`small`: CartPole-v1, 64 environments of 128 steps, 4 shards, 16 gradient steps of 9,155 parameters. `large`: Acrobot-v1, 16 environments of 64",
        "steps, 4 shards, 4 gradient steps of networks with two layers of 512 units; gradients are added in slices between gloo ranks.",
        "",
        "| workload | case | measured, ms | predicted, ms | error | other programs |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for row in result["cases"]:
        error = f"{row['error']:+.0%}"
        error = error if abs(row["error"]) <= GOAL else f"**{error}**"
        others = f"{min(row['other_programs']):.0%} … {max(row['other_programs']):.0%}, {row['undisturbed']} of {len(row['measured_ms'])} undisturbed"
        cells = (row["workload"], row["case"], spread(row["measured_ms"]), spread(row["predicted_ms"]), error, others)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", *ddppo.section(result["ddppo"]), ""])


def spread(values: Sequence[float]) -> str:
    """Format the median with minimum and maximum."""
    return f"{statistics.median(values):,.1f} ({min(values):,.1f} … {max(values):,.1f})"


def main() -> None:
    """Measure everything, and write both files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4, help="duration of a run on one rank, without its start")
    parser.add_argument("--keep-steps", action="store_true", help="keep the recorded times of optimizer steps")
    parser.add_argument("--only-report", action="store_true", help="write the tables again, without measuring")
    arguments = parser.parse_args()
    file = HERE / "simulate.json"
    if arguments.only_report:
        result = json.loads(file.read_text())
    else:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        result = {
            "torch": version("torch"),
            "processor": next(line.split(":")[1].strip() for line in lines if line.startswith("model name")),
            "cores": os.cpu_count(),
            "repeats": arguments.repeats,
            "load_before": round(os.getloadavg()[0], 2),
            "optimizer_steps": json.loads(file.read_text())["optimizer_steps"]
            if arguments.keep_steps
            else optimizer_steps(arguments.repeats),
        }
        result["cases"], result["curves"] = compare(arguments.repeats, arguments.seconds)
        result["load_after"] = round(os.getloadavg()[0], 2)
    result |= {"ddppo_assumptions": ddppo.PAPER | ddppo.ASSUMED, "ddppo": ddppo.speedups()}
    file.write_text(json.dumps(result, indent=1) + "\n")
    (HERE / "simulate.md").write_text(report(result))
    draw(result["curves"], HERE.parent / "docs" / "simulate.png")


if __name__ == "__main__":
    main()

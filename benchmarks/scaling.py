"""Measure steps per second as a function of environments, minibatch size, layer width and ranks, around one experiment.

    python benchmarks/scaling.py [--only environments minibatch hidden ranks] [--tasks CartPole-v1 HalfCheetah-v5]
        [--repeats 3] [--seconds 2] [--flag '--section.field value'] [--out benchmarks/scaling.json] [--page docs/cost.md]

Writes scaling.json and, from it, the page docs/cost.md with its figure. Measured axes replace those in the file; the other axes stay.

The base experiment has 64 environments, 8,192 steps per iteration, 4 epochs of minibatches of 512, two hidden layers of 64 units, and 1 rank. Each axis
changes one of these numbers. An iteration always has 8,192 steps: with fewer environments, each takes more steps. Every repeat measures all points of an axis one
after the other and starts with another point. Steps per second are from the metrics of whole runs, without their first iterations. The update is compiled if
there is a compiler, as in a long run.
"""

import argparse
import dataclasses
import json
import os
import platform
import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib.figure
import matplotlib.ticker

from lockstep.bench.repeats import interleave, spread
from lockstep.bench.training import Training, train
from lockstep.bench.workloads import PLAIN
from lockstep.config.compose import load
from lockstep.config.flags import parse_flags
from lockstep.experiment.resolve import resolve
from lockstep.run.environment import describe_environment

BATCH = 8192
BASE = {"environments": 64, "minibatch": 512, "hidden": 64, "ranks": 1}
AXES: dict[str, tuple[int, ...]] = {
    "environments": tuple(2**power for power in range(10)),
    "minibatch": tuple(2**power for power in range(6, 14)),
    "hidden": (64, 128, 256, 512, 1024),
    "ranks": (1, 2, 4),
}
TITLES = {
    "environments": "Environments",
    "minibatch": "Minibatch size",
    "hidden": "Units per hidden layer",
    "ranks": "Ranks",
}
TASKS = ("CartPole-v1", "HalfCheetah-v5")
# Okabe and Ito, "Color Universal Design" (2008): distinguishable with any color vision.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
STYLE = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 11,
    "grid.color": "#DDDDDD",
}


def run(task: str, point: dict[str, int], seconds: float, flags: list[str]) -> Training:
    """Train `task` at one point of an axis for about `seconds`."""
    experiment = [
        *("--env", task, "--env.count", str(point["environments"])),
        *("--rollout.steps", str(BATCH // point["environments"])),
        *("--ppo.minibatches", str(BATCH // point["minibatch"])),
        *("--policy.hidden", str(point["hidden"]), str(point["hidden"])),
        *("--ppo.epochs", "4", *PLAIN),
    ]
    tree: dict[str, dict[str, object]] = {"runtime": {"device": "cpu"}, "run": {"total_steps": 10**12}}
    for source in (experiment, flags):
        for section, fields in parse_flags(source)[0].items():
            tree.setdefault(section, {}).update(fields)
    config = resolve(load(None, None, tree), point["ranks"])
    return train(config, point["ranks"], seconds=seconds)


def measure(task: str, axis: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure all points of an axis and return one record per point."""
    flags = [word for flag in arguments.flag for word in shlex.split(flag)]

    def show(repeat: int, name: str, result: Training) -> None:
        line = f"repeat {repeat + 1}/{arguments.repeats}  {task}, {name:>5} {axis:<12}{result.rate:>12,.0f} steps/s"
        print(line, file=sys.stderr, flush=True)

    runs = {str(value): partial(run, task, {**BASE, axis: value}, arguments.seconds, flags) for value in AXES[axis]}
    return [
        {
            axis: int(value),
            **dataclasses.asdict(spread([training.rate for training in repeats])),
            "rollout_share": spread(
                [training.phases()["rollout"] / training.phases()["iter"] for training in repeats]
            ).median,
            "peak_memory_bytes": max(repeats[0].memory),
        }
        for value, repeats in interleave(runs, arguments.repeats, show).items()
    ]


def page(result: dict[str, Any], picture: str) -> str:
    """Return the Markdown page."""
    ranks, base = result["axes"].get("ranks", {}), BASE
    lines = [
        "# Scaling and cost",
        "",
        "This page shows how the training speed depends on the number of environments, the minibatch size, the layer width and the number of ranks.",
        "",
        f"Each table varies one of these quantities. The other quantities have the values of the base experiment: {base['environments']} environments, {BATCH:,} steps per iteration, 4 epochs of minibatches of",
        f"{base['minibatch']}, two hidden layers of {base['hidden']} units, and {base['ranks']} rank (the dashed lines of the figure). With fewer environments, each environment takes more steps, so",
        "that an iteration always has the same number of steps. With several ranks, the same experiment is split into as many shards.",
        "",
        f"![Environment steps per second over each axis, for two tasks]({picture})",
        "",
        f"The tables show environment steps per second during training: medians of {result['repeats']} interleaved runs of {result['seconds']:g} s, with minimum and maximum, and the fraction",
        f"of an iteration that collecting takes. Machine: {result['cores']} cores of {result['processor']}, PyTorch {result['versions']['torch']}. A rank computes in one thread. envpool steps HalfCheetah in as",
        "many threads as the rank has cores, so one rank already uses both cores there.",
        "`benchmarks/scaling.py` writes this page; `benchmarks/scaling.json` also has memory and versions.",
    ]
    for axis, tasks in result["axes"].items():
        head = "".join(f" {task} | min … max | collecting |" for task in tasks)
        lines += ["", f"## {TITLES[axis]}", "", f"| {axis} |{head}", "| ---: |" + " ---: | --- | ---: |" * len(tasks)]
        for points in zip(*tasks.values(), strict=True):
            cells = "".join(
                f" {point['median']:,.0f} | {point['least']:,.0f} … {point['most']:,.0f} | {point['rollout_share']:.0%} |"
                for point in points
            )
            lines.append(f"| {points[0][axis]:,} |{cells}")
    if any(point["ranks"] > result["cores"] for points in ranks.values() for point in points):
        lines += ["", f"The machine has {result['cores']} cores; more ranks share them."]
    return "\n".join(lines) + "\n"


def draw(axes: dict[str, dict[str, list[dict[str, Any]]]], path: Path) -> None:
    """Draw one panel per axis, with one line per task, and save the figure."""
    with matplotlib.rc_context(STYLE):
        figure = matplotlib.figure.Figure(figsize=(9, 7), dpi=100, layout="constrained")
        panels = figure.subplots(2, 2).flatten()
        for panel, (axis, tasks) in zip(panels, axes.items(), strict=False):
            for color, (task, points) in zip(COLORS, tasks.items(), strict=False):
                values = [point[axis] for point in points]
                limits = ([point[name] for point in points] for name in ("least", "most"))
                panel.fill_between(values, *limits, color=color, alpha=0.2, linewidth=0)
                panel.plot(values, [point["median"] for point in points], color=color, marker="o", label=task)
            panel.set(xlabel=TITLES[axis].lower(), ylabel="steps per second", xscale="log", yscale="log")
            panel.set_xticks(AXES[axis], [f"{value}" for value in AXES[axis]], minor=False, fontsize=8)
            panel.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
            panel.yaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))
            panel.minorticks_off()
            panel.axvline(BASE[axis], color="#595959", linewidth=0.8, linestyle="--")
        for panel in panels[len(axes) :]:
            panel.set_axis_off()
        figure.legend(*panels[0].get_legend_handles_labels(), frameon=False, loc="outside upper center", ncols=2)
        figure.savefig(path)


def main() -> None:
    """Measure the axes; after each, write the JSON file, the page and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("scaling.json"))
    parser.add_argument("--page", type=Path, default=Path(__file__).parents[1] / "docs" / "cost.md")
    parser.add_argument("--only", nargs="+", default=list(AXES), choices=list(AXES))
    parser.add_argument("--tasks", nargs="+", default=list(TASKS))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--flag", action="append", default=[], metavar="'--section.field value'")
    arguments = parser.parse_args()
    result = json.loads(arguments.out.read_text()) if arguments.out.exists() else {"axes": {}}
    for axis in arguments.only:
        result["axes"][axis] = {task: measure(task, axis, arguments) for task in arguments.tasks}
        result["axes"] = {name: result["axes"][name] for name in AXES if name in result["axes"]}
        environment = describe_environment(1)
        result |= {"processor": environment["processor"], "cores": os.cpu_count(), "python": platform.python_version()}
        result |= {"versions": environment["packages"], "repeats": arguments.repeats, "seconds": arguments.seconds}
        result["flags"] = arguments.flag
        arguments.out.write_text(json.dumps(result, indent=1) + "\n")
        picture = arguments.page.with_suffix(".png")
        arguments.page.write_text(page(result, picture.name))
        draw(result["axes"], picture)


if __name__ == "__main__":
    main()

"""Pong's preset beside its environments alone, and beside what its network needs at least. Writes benchmarks/pong.json and .md.

    python benchmarks/pong.py [--repeats 5] [--iterations 8] [--seconds 2] [--out benchmarks/pong.json]

Three things in turn, on two processes of one thread each:

    training      the preset
    environments  its engine, random actions
    network       PyTorch's own layers and nothing else: the minibatches' forward and backward passes, as often as the preset has epochs, and
                  the passes that choose actions; images lie ready, and nobody waits for anybody

What takes part in training at least is an environment's step and the network's passes for it, so 1 / (1 / environments + 1 / network) steps
per second is the ceiling: what two cores could do with this network, in float32, if all the rest took no time.
"""

import argparse
import json
import platform
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
from torch import nn

from lockstep import presets
from lockstep.bench.repeats import Spread, interleave, ratios, spread
from lockstep.bench.stepping import engine_rate
from lockstep.bench.training import train
from lockstep.config import Config
from lockstep.config.compose import load
from lockstep.experiment.resolve import resolve
from lockstep.processes.children import module_environment
from lockstep.run.environment import describe_environment

RANKS = 2
SHAPE = (4, 84, 84)
ACTIONS = 6


def layers() -> nn.Module:
    """The network of Mnih et al. (2015) with heads for actions and value, as most programs write it; channels last, which is faster."""
    convolutions = [
        nn.Conv2d(4, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
    ]
    network = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(3136, 512), nn.ReLU(), nn.Linear(512, ACTIONS + 1))
    return network.to(memory_format=torch.channels_last)


def per_row(rows: int, seconds: float, network: nn.Module, trains: bool) -> float:
    """Seconds that a pass takes for each of its rows."""
    images = torch.rand(rows, *SHAPE).contiguous(memory_format=torch.channels_last)
    passes, begun, passed = 0, 0.0, 0.0
    while passed < seconds:
        if passes == 1:
            begun = time.perf_counter()  # the first one chooses kernels
        with torch.set_grad_enabled(trains):
            found = network(images)
            if trains:
                torch.autograd.grad(found.square().sum(), list(network.parameters()))
        passes += 1
        passed = time.perf_counter() - begun if passes > 1 else 0.0
    return passed / ((passes - 1) * rows)


def passes(minibatch: int, acting: int, epochs: int, seconds: float) -> float:
    """Environment steps per second of one process that only passes through the network, for `acting` environments at once."""
    torch.set_num_threads(1)
    network = layers()
    learn = per_row(minibatch, seconds * 0.8, network, trains=True)
    act = per_row(acting, seconds * 0.2, network, trains=False)
    return 1 / (epochs * learn + act)


def network_rate(config: Config, seconds: float) -> float:
    """Of all processes at once."""
    shards = config.plan.shards or 1
    minibatch = config.env.count * config.rollout.steps // config.ppo.minibatches // shards
    words = [minibatch, config.env.count // shards, config.ppo.epochs, seconds]
    command = [sys.executable, __file__, "--alone", *map(str, words)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=module_environment()) for _ in range(RANKS)]
    return sum(float(process.communicate()[0]) for process in processes)


def page(found: dict[str, Spread], machine: str) -> str:
    """The Markdown page."""
    lines = [
        "# Pong on two cores",
        "",
        "    python benchmarks/pong.py",
        "",
        "The preset `pong` on two ranks, its engine alone with random actions, and the passes through its network alone, on the same cores, in",
        f"turn: medians of interleaved repeats, with the least and the most. {machine}.",
        "",
        "| | median | least … most |",
        "| --- | ---: | --- |",
    ]
    for name, one in found.items():
        form = "{:.2f}" if " / " in name else "{:,.0f}"
        lines.append(f"| {name} | {form.format(one.median)} | {form.format(one.least)} … {form.format(one.most)} |")
    lines += [
        "",
        "The ceiling is what would be left if nothing but these two took time: one step of the engine, one pass to choose its action, and four passes forward and",
        "back, one an epoch, in float32. It, not the engine, limits this preset on a CPU: a sample's pass forward and back is some 50 million",
        "operations, and four of them take several times as long as the emulator's four frames.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measures and writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("pong.json"))
    parser.add_argument("--alone", type=float, nargs=4, help=argparse.SUPPRESS)
    own = parser.parse_args()
    if own.alone:
        minibatch, acting, epochs, seconds = own.alone
        print(passes(int(minibatch), int(acting), int(epochs), seconds))
        return
    config = resolve(load(presets.read("pong"), None, {}), RANKS)
    runs = {
        "training": lambda: train(config, RANKS, own.iterations).rate,
        "environments": partial(engine_rate, config, RANKS, own.seconds),
        "network": partial(network_rate, config, own.seconds),
    }
    rates = interleave(runs, own.repeats, partial(print, file=sys.stderr, flush=True))
    pairs = zip(rates["environments"], rates["network"], strict=True)
    rates["ceiling"] = [1 / (1 / environments + 1 / network) for environments, network in pairs]
    found = {
        "training, steps/s": spread(rates["training"]),
        "environments alone": spread(rates["environments"]),
        "passes through the network alone": spread(rates["network"]),
        "ceiling": spread(rates["ceiling"]),
        "training / environments": ratios(rates["training"], rates["environments"]),
        "ceiling / environments": ratios(rates["ceiling"], rates["environments"]),
        "training / ceiling": ratios(rates["training"], rates["ceiling"]),
    }
    environment = describe_environment(RANKS)
    machine = f"{environment['processor']}, PyTorch {environment['packages']['torch']}"
    record = {"python": platform.python_version(), "machine": machine, "rates": rates}
    own.out.write_text(json.dumps(record, indent=1) + "\n")
    own.out.with_suffix(".md").write_text(page(found, machine))


if __name__ == "__main__":
    main()

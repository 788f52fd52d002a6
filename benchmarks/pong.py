"""Compare the preset `atari` on Pong with its environments alone and with its network alone. Write benchmarks/pong.json and .md.

    python benchmarks/pong.py [--repeats 5] [--iterations 8] [--seconds 2] [--out benchmarks/pong.json]

Three measurements in turn, on two processes of one thread each:

    training      the preset
    environments  its engine with random actions
    network       only PyTorch layers: the forward and backward passes of the minibatches, once per epoch, and the forward passes that compute
                  actions; the images are prepared before, and the processes do not wait for each other

Training needs at least one environment step and the passes of the network for it. So 1 / (1 / environments + 1 / network) steps per second is the
upper limit for two cores with this network in float32, if everything else took no time.
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
    """Create the network of Mnih et al. (2015) with heads for actions and value; in channels-last format, which is faster."""
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
    """Return the seconds of a pass divided by its rows; `trains` adds the backward pass."""
    images = torch.rand(rows, *SHAPE).contiguous(memory_format=torch.channels_last)
    passes, start, elapsed = 0, 0.0, 0.0
    while elapsed < seconds:
        if passes == 1:
            start = time.perf_counter()  # not counted: the first pass selects kernels
        with torch.set_grad_enabled(trains):
            output = network(images)
            if trains:
                torch.autograd.grad(output.square().sum(), list(network.parameters()))
        passes += 1
        elapsed = time.perf_counter() - start if passes > 1 else 0.0
    return elapsed / ((passes - 1) * rows)


def passes(minibatch: int, acting: int, epochs: int, seconds: float) -> float:
    """Return the environment steps per second of one process that only computes the network, for `acting` environments at once."""
    torch.set_num_threads(1)
    network = layers()
    learn = per_row(minibatch, seconds * 0.8, network, trains=True)
    act = per_row(acting, seconds * 0.2, network, trains=False)
    return 1 / (epochs * learn + act)


def network_rate(config: Config, seconds: float) -> float:
    """Return the sum of the steps per second of all network processes, which run at the same time."""
    shards = config.plan.shards or 1
    minibatch = config.env.count * config.rollout.steps // config.ppo.minibatches // shards
    numbers = [minibatch, config.env.count // shards, config.ppo.epochs, seconds]
    command = [sys.executable, __file__, "--alone", *map(str, numbers)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=module_environment()) for _ in range(RANKS)]
    return sum(float(process.communicate()[0]) for process in processes)


def page(results: dict[str, Spread], machine: str) -> str:
    """Return the Markdown page."""
    lines = [
        "# Pong: training speed and its upper limit",
        "",
        "    python benchmarks/pong.py",
        "",
        "Speed of the preset `atari` on Pong on two ranks, of its engine alone with random actions, and of its network alone, on the same two cores. Medians of",
        f"interleaved repeats, with minimum and maximum. {machine}.",
        "",
        "| | median | min … max |",
        "| --- | ---: | --- |",
    ]
    for name, values in results.items():
        form = "{:.2f}" if " / " in name else "{:,.0f}"
        lines.append(
            f"| {name} | {form.format(values.median)} | {form.format(values.least)} … {form.format(values.most)} |"
        )
    lines += [
        "",
        "The upper limit is the speed if only these parts took time: one step of the engine, one forward pass to compute its action, and four forward and backward",
        "passes, one per epoch, in float32. The network limits this preset on a CPU, not the engine: a forward and backward pass of one sample takes about 50 million",
        "operations, and four of them take several times as long as the four frames of the emulator.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and write the JSON file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("pong.json"))
    parser.add_argument("--alone", type=float, nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.alone:
        minibatch, acting, epochs, seconds = arguments.alone
        print(passes(int(minibatch), int(acting), int(epochs), seconds))
        return
    config = resolve(load(presets.read("atari"), None, {"env": {"id": "ALE/Pong-v5"}}), RANKS)
    runs = {
        "training": lambda: train(config, RANKS, arguments.iterations).rate,
        "environments": partial(engine_rate, config, RANKS, arguments.seconds),
        "network": partial(network_rate, config, arguments.seconds),
    }
    rates = interleave(runs, arguments.repeats, partial(print, file=sys.stderr, flush=True))
    pairs = zip(rates["environments"], rates["network"], strict=True)
    rates["ceiling"] = [1 / (1 / environments + 1 / network) for environments, network in pairs]
    results = {
        "training, steps/s": spread(rates["training"]),
        "environments alone, steps/s": spread(rates["environments"]),
        "network alone, steps/s": spread(rates["network"]),
        "upper limit, steps/s": spread(rates["ceiling"]),
        "training / environments": ratios(rates["training"], rates["environments"]),
        "upper limit / environments": ratios(rates["ceiling"], rates["environments"]),
        "training / upper limit": ratios(rates["training"], rates["ceiling"]),
    }
    environment = describe_environment(RANKS)
    machine = f"{environment['processor']}, PyTorch {environment['packages']['torch']}"
    record = {"python": platform.python_version(), "machine": machine, "rates": rates}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(page(results, machine))


if __name__ == "__main__":
    main()

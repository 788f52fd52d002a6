"""Compare the preset `atari` on Pong with its limits on the same cores, and with other libraries. Write benchmarks/pong.json and .md.

    python benchmarks/pong.py [--repeats 5] [--iterations 8] [--seconds 2] [--out benchmarks/pong.json]
        [--sb3 PYTHON] [--cleanrl PYTHON SCRIPT]

Measurements in turn, the first five on two processes of one thread each:

    training      the preset
    environments  its engine with random actions
    network       only PyTorch layers: the forward and backward passes of the minibatches, once per epoch, and the forward passes that compute
                  actions; the images are prepared before, and the processes do not wait for each other
    products      only products of square matrices by PyTorch, with as many operations as the network has
    kernels       the same products by the interpreter of kernels
    sb3           Stable-Baselines3 with the same settings on all cores (`pong_sb3.py`), in the interpreter PYTHON
    cleanrl       CleanRL's script `ppo_atari_envpool.py`, unmodified, which has the same settings, in the interpreter PYTHON, on all cores

Training needs at least one environment step and the passes of the network for it. So 1 / (1 / environments + 1 / network) steps per second is the
upper limit for two cores with this network in float32, if everything else took no time.
"""

import argparse
import json
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from lockstep import presets
from lockstep.bench.repeats import Spread, interleave, ratios, spread
from lockstep.bench.stepping import engine_rate
from lockstep.bench.training import train
from lockstep.compiling.kernels import InterpretedKernel, MakeKernel, eager
from lockstep.config import Config
from lockstep.config.compose import load
from lockstep.experiment.resolve import resolve
from lockstep.processes.children import module_environment
from lockstep.run.environment import describe_environment

RANKS = 2
SHAPE = (4, 84, 84)
ACTIONS = 6
LAYERS = (
    (20 * 20, 8 * 8 * 4, 32),
    (9 * 9, 4 * 4 * 32, 64),
    (7 * 7, 3 * 3 * 64, 64),
    (1, 7 * 7 * 64, 512),
    (1, 512, ACTIONS + 1),
)
"""Outputs per channel, inputs of an output, and channels of the layers of the network."""
STEPS = 1024
"""Environment steps of an iteration."""
PEERS = {"sb3": "Stable-Baselines3", "cleanrl": "CleanRL with envpool"}


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


def operations(epochs: int) -> int:
    """Return the floating-point operations of the network per environment step.

    A pass forward and backward takes three products for each layer, but the first layer needs no gradient of its inputs.
    """
    forward = [2 * outputs * inputs * channels for outputs, inputs, channels in LAYERS]
    return epochs * (3 * sum(forward) - forward[0]) + sum(forward)


def products(epochs: int, seconds: float, make_kernel: MakeKernel) -> float:
    """Return the environment steps per second of one process that only multiplies matrices, with the operations of the network."""
    torch.set_num_threads(1)
    factors = torch.rand(1024, 1024), torch.rand(1024, 1024)
    multiply = make_kernel(lambda left, right: (left @ right,), factors)
    multiply(*factors)  # not counted: the first product of PyTorch selects its code
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        multiply(*factors)
        count += 1
    return count * 2 * 1024**3 / (time.perf_counter() - start) / operations(epochs)


def alone(flag: str, *numbers: float) -> float:
    """Return the sum of the steps per second of one process per rank, which run at the same time."""
    command = [sys.executable, __file__, flag, *map(str, numbers)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, env=module_environment()) for _ in range(RANKS)]
    return sum(float(process.communicate()[0]) for process in processes)


def network_rate(config: Config, seconds: float) -> float:
    """Return the steps per second of the network alone."""
    shards = config.plan.shards or 1
    minibatch = config.env.count * config.rollout.steps // config.ppo.minibatches // shards
    return alone("--network", minibatch, config.env.count // shards, config.ppo.epochs, seconds)


def peer_rate(command: Sequence[str], mark: str, iterations: int) -> float:
    """Return the steps per second of a program that prints a line with `mark` after every iteration. The first two are not counted."""
    times = []
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=folder) as process,
    ):
        assert process.stdout is not None
        times = [time.perf_counter() for line in process.stdout if line.startswith(mark)]
    if process.returncode or len(times) != iterations:
        raise SystemExit(
            f"{' '.join(command)} printed {len(times)} of {iterations} lines, exit code {process.returncode}"
        )
    return STEPS * (iterations - 3) / (times[-1] - times[2])


def page(results: dict[str, Spread], machine: str) -> str:
    """Return the Markdown page."""
    lines = [
        "# Pong: training speed and its upper limit",
        "",
        "    python benchmarks/pong.py --sb3 PYTHON --cleanrl PYTHON ppo_atari_envpool.py",
        "",
        "Speed of the preset `atari` on Pong on two ranks, of its engine alone with random actions, of its network alone, of matrix products alone, and of other",
        f"libraries with the same settings, on the same two cores. Medians of interleaved repeats, with minimum and maximum. {machine}.",
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
        "operations, and four of them take several times as long as the four frames of the emulator. *Products alone* is the speed of a program that multiplies matrices",
        f"of 1,024 rows and columns with PyTorch and does nothing else, if a step takes the {operations(4) / 1e6:.0f} million operations of the network; *products by kernels*",
        "is that of the same program with kernels of lockstep. Kernels also compute the network of lockstep; *network alone* is computed by PyTorch.",
    ]
    return "\n".join(lines) + "\n"


def peers(arguments: argparse.Namespace) -> dict[str, Callable[[], float]]:
    """Return the measurements of the other libraries that the command line has interpreters for."""
    count = arguments.iterations
    runs: dict[str, Callable[[], float]] = {}
    if arguments.sb3:
        command = [arguments.sb3, str(Path(__file__).with_name("pong_sb3.py")), str(count)]
        runs["sb3"] = partial(peer_rate, command, "iteration", count)
    if arguments.cleanrl:
        words = ["--env-id", "Pong-v5", "--total-timesteps", str(STEPS * count)]
        runs["cleanrl"] = partial(peer_rate, [*arguments.cleanrl, *words], "SPS:", count)
    return runs


def summarize(rates: dict[str, list[float]]) -> dict[str, Spread]:
    """Return the rows of the table, by name."""
    names = {
        "training": "training, steps/s",
        "environments": "environments alone, steps/s",
        "network": "network alone, steps/s",
        "products": "products alone, steps/s",
        "kernels": "products by kernels, steps/s",
        "limit": "upper limit, steps/s",
    }
    results = {text: spread(rates[name]) for name, text in names.items()}
    results |= {f"{PEERS[name]}, steps/s": spread(rates[name]) for name in PEERS if name in rates}
    results |= {
        "training / environments": ratios(rates["training"], rates["environments"]),
        "training / products": ratios(rates["training"], rates["products"]),
        "training / products by kernels": ratios(rates["training"], rates["kernels"]),
        "training / upper limit": ratios(rates["training"], rates["limit"]),
    }
    return results | {
        f"training / {PEERS[name]}": ratios(rates["training"], rates[name]) for name in PEERS if name in rates
    }


def main() -> None:
    """Measure and write the JSON file and the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--sb3", metavar="PYTHON")
    parser.add_argument("--cleanrl", nargs=2, metavar=("PYTHON", "SCRIPT"))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("pong.json"))
    parser.add_argument("--network", type=float, nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--products", type=float, nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--kernels", type=float, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.network:
        minibatch, acting, epochs, seconds = arguments.network
        print(passes(int(minibatch), int(acting), int(epochs), seconds))
        return
    for numbers, make_kernel in ((arguments.products, eager), (arguments.kernels, InterpretedKernel)):
        if numbers:
            print(products(int(numbers[0]), numbers[1], make_kernel))
            return
    config = resolve(load(presets.read("atari"), None, {"env": {"id": "ALE/Pong-v5"}}), RANKS)
    runs = {
        "training": lambda: train(config, RANKS, arguments.iterations).rate,
        "environments": partial(engine_rate, config, RANKS, arguments.seconds),
        "network": partial(network_rate, config, arguments.seconds),
        "products": partial(alone, "--products", config.ppo.epochs, arguments.seconds),
        "kernels": partial(alone, "--kernels", config.ppo.epochs, arguments.seconds),
        **peers(arguments),
    }
    rates = interleave(runs, arguments.repeats, partial(print, file=sys.stderr, flush=True))
    pairs = zip(rates["environments"], rates["network"], strict=True)
    rates["limit"] = [1 / (1 / environments + 1 / network) for environments, network in pairs]
    environment = describe_environment(RANKS)
    machine = f"{environment['processor']}, PyTorch {environment['packages']['torch']}"
    record = {"python": platform.python_version(), "machine": machine, "rates": rates}
    arguments.out.write_text(json.dumps(record, indent=1) + "\n")
    arguments.out.with_suffix(".md").write_text(page(summarize(rates), machine))


if __name__ == "__main__":
    main()

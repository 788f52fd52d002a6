"""Measure training on a GPU beside training on the CPU and beside Stable-Baselines3 on the same GPU. Write benchmarks/gpu.json and gpu.md.

    python benchmarks/gpu.py [--repeats 3] [--work HalfCheetah Pong] [--out benchmarks/gpu.json]

    HalfCheetah  preset `mujoco` on HalfCheetah-v5: 10 epochs of 32 minibatches of 64
    Pong         preset `atari` on Pong: 4 epochs of 4 minibatches of 256

Each is measured on the CPU and on the GPU, with one rank and with four ranks that share the GPU, and one shard per rank. Stable-Baselines3 has
the same environments, networks, minibatches and epochs. Runs alternate. Memory of the GPU is the largest that `nvidia-smi` reports while training, all processes together.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch

from lockstep.bench.repeats import Spread, interleave, ratios, spread
from lockstep.processes.children import module_environment
from lockstep.run.environment import packages, processor_type

HERE = Path(__file__).parent
WORKS: dict[str, tuple[Sequence[str], int, Mapping[str, int]]] = {
    "HalfCheetah": (("mujoco", "--env.id", "HalfCheetah-v5"), 2048, {"cpu": 16, "cuda": 16}),
    "Pong": (("atari", "--env.id", "ALE/Pong-v5"), 1024, {"cpu": 7, "cuda": 16}),
}
"""Words of `lockstep train`, steps of an iteration, and iterations by the device, by the name of the task."""
PEER = "Stable-Baselines3, GPU"
CASES = {
    "CPU, 1 rank": ("cpu", 1),
    "CPU, 4 ranks": ("cpu", 4),
    "GPU, 1 rank": ("cuda", 1),
    "GPU, 4 ranks": ("cuda", 4),
    PEER: ("", 0),
}
NOTES = (
    "On a GPU, `lockstep` records a gradient step, a step of the optimizer and a step of acting as CUDA graphs, with the bits of the recorded",
    "operations. Without graphs, the same machine needed 1,913 ms for an update of HalfCheetah and 155 ms for one of Pong, because a step launches about",
    "170 kernels of a few microseconds one by one. On the CPU, the update was not compiled here: this needs PyTorch 2.13.",
    "",
    "Four ranks on one GPU are slower than one: the GPU serves processes in turn. NCCL refuses several ranks on one GPU (`Duplicate GPU detected`); they",
    "exchange gradients through shared memory or gloo.",
)
"""End of the page."""
UNCOUNTED = 4
"""Iterations at the start that are not counted, while libraries choose their kernels."""


@contextmanager
def gpu_memory() -> Iterator[list[int]]:
    """Sample the memory of the GPU in MiB into the list, each quarter of a second, less what was in use before."""
    ended, samples = threading.Event(), [0]
    before = used_memory()

    def sample() -> None:
        while not ended.wait(0.25):
            samples[0] = max(samples[0], used_memory() - before)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def used_memory() -> int:
    """Return the memory of the GPU that is in use, in MiB."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[0])


def train(work: str, device: str, ranks: int) -> dict[str, float]:
    """Train a task with lockstep. Return steps per second, seconds of rollout and update per iteration, and MiB of GPU memory."""
    words, steps, iterations = WORKS[work]
    with tempfile.TemporaryDirectory() as folder, gpu_memory() as memory:
        command = [sys.executable, "-m", "lockstep", "train", *words, "--runtime.device", device]
        command += ["--plan.shards", str(ranks), "--ranks", str(ranks)]
        command += ["--total-steps", str(steps * iterations[device])]
        command += ["--out", folder, "--name", "run", "--run.progress", "off"]
        subprocess.run(command, env=module_environment(), check=True, capture_output=True)
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines][UNCOUNTED:]
    seconds = sum(row["t_iter"] for row in rows)
    parts = {part: sum(row[f"t_{part}"] for row in rows) / len(rows) for part in ("rollout", "learn")}
    return {"rate": steps * len(rows) / seconds, **parts, "memory": memory[0]}


def train_peer(work: str) -> dict[str, float]:
    """Train a task with Stable-Baselines3 in a process of its own. Return what `train` does."""
    with gpu_memory() as memory:
        command = [sys.executable, __file__, "--peer", work]
        finished = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    result: dict[str, float] = json.loads(finished.stdout.splitlines()[-1])
    return result | {"memory": memory[0]}


def run_peer(work: str) -> None:
    """Train a task with Stable-Baselines3 in this process, and print steps per second and seconds per iteration."""
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack, VecNormalize

    torch.set_num_threads(1)
    if work == "Pong":
        import ale_py  # noqa: F401  # registers the environments

        environment = VecFrameStack(make_atari_env("ALE/Pong-v5", 8, seed=0, env_kwargs={"frameskip": 1}), 4)
        model = PPO("CnnPolicy", environment, n_steps=128, batch_size=256, n_epochs=4, device="cuda")
    else:
        environment = VecNormalize(make_vec_env("HalfCheetah-v5", 8, seed=0))
        model = PPO("MlpPolicy", environment, n_steps=256, batch_size=64, n_epochs=10, device="cuda")
    iterations = 6 + UNCOUNTED
    marks: list[float] = []
    learned = [0.0]
    update = model.train

    def timed() -> None:
        start = time.perf_counter()
        update()
        torch.cuda.synchronize()
        learned[0] += time.perf_counter() - start

    class Marks(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_start(self) -> None:
            marks.append(time.perf_counter())
            if len(marks) == UNCOUNTED + 1:
                learned[0] = 0.0

    model.train = timed
    steps = WORKS[work][1]
    model.learn(steps * iterations, callback=Marks())
    marks.append(time.perf_counter())
    count = len(marks) - 1 - UNCOUNTED
    seconds = marks[-1] - marks[UNCOUNTED]
    learn = learned[0] / count
    print(json.dumps({"rate": steps * count / seconds, "rollout": seconds / count - learn, "learn": learn}))


def table(work: str, results: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """Return the lines of a task's table."""
    lines = [
        f"| {work} | steps/s | min … max | of Stable-Baselines3 | rollout | update | GPU memory |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    peer = [result["rate"] for result in results.get(PEER, [])]
    for case, repeats in results.items():
        rate = spread([result["rate"] for result in repeats])
        pairs = list(zip((result["rate"] for result in repeats), peer, strict=False))
        ratio = "–" if case == PEER or not pairs else _times(ratios(*zip(*pairs, strict=True)))
        rollout, learn = (spread([result[part] for result in repeats]).median * 1e3 for part in ("rollout", "learn"))
        memory = max(result["memory"] for result in repeats)
        cells = (f"{rate.median:,.0f}", f"{rate.least:,.0f} … {rate.most:,.0f}", ratio)
        lines.append(
            f"| {case} | {' | '.join(cells)} | {rollout:,.0f} ms | {learn:,.0f} ms | {f'{memory:,.0f} MiB' if memory else '–'} |"
        )
    return lines


def report(record: Mapping[str, Any]) -> str:
    """Return the Markdown page for what gpu.json holds."""
    machine, torch_version = record["machine"], record["packages"]["torch"]
    count = max(len(repeats) for results in record["results"].values() for repeats in results.values())
    page = [
        "# Training on a GPU",
        "",
        f"    {record['command']}",
        "",
        f"{machine['gpu']}; {machine['cores']} cores of {machine['processor'].partition(',')[0]}; PyTorch {torch_version}. Each case was trained",
        f"up to {count} times, in turn with the others: medians, minimum and maximum. Rollout and update are times per iteration.",
    ]
    for work, results in record["results"].items():
        page += ["", *table(work, {case: results[case] for case in CASES if case in results})]
    page += ["", *NOTES]
    return "\n".join(page) + "\n"


def _times(ratio: Spread) -> str:
    return f"{ratio.median:.1f} ({ratio.least:.1f} … {ratio.most:.1f})"


def main() -> None:
    """Measure all cases, and write the files after each repeat."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", nargs="+", choices=WORKS, default=list(WORKS))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--peer", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=HERE / "gpu.json")
    arguments = parser.parse_args()
    if arguments.peer:
        run_peer(arguments.peer)
        return
    results: dict[str, dict[str, list[dict[str, float]]]] = {}

    def save(_: int, name: str, result: dict[str, float]) -> None:
        work, _, case = name.partition(": ")
        results.setdefault(work, {}).setdefault(case, []).append(result)
        print(name, {key: round(value, 3) for key, value in result.items()}, flush=True)
        machine = {"gpu": torch.cuda.get_device_name(), "cores": os.cpu_count(), "processor": processor_type(False)}
        record: dict[str, Any] = {"command": " ".join(sys.argv), "machine": machine, "packages": packages()}
        record |= {"results": results}
        arguments.out.write_text(json.dumps(record, indent=2) + "\n")
        arguments.out.with_suffix(".md").write_text(report(record))

    runs: dict[str, Callable[[], dict[str, float]]] = {}
    for work in arguments.work:
        for case in arguments.cases:
            run = partial(train_peer, work) if case == PEER else partial(train, work, *CASES[case])
            runs[f"{work}: {case}"] = run
    interleave(runs, arguments.repeats, save)
    print(arguments.out.with_suffix(".md").read_text())


if __name__ == "__main__":
    main()

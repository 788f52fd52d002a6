"""Measure what evaluation, a hook and the dashboard cost together. Write benchmarks/observed.json and .md after every repeat.

    python benchmarks/observed.py [--repeats 5] [--out benchmarks/observed.json]

Each run is trained twice in turn: as it is, and with evaluations, a hook that records a metric after each iteration, and a
dashboard that is asked for everything about the run every two seconds, as its page does. The browser is not part of it. The ratio is that of the
speeds within a pair. With two ranks, training uses both cores of the machine.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from urllib.request import urlopen

from lockstep.bench.repeats import interleave, ratios, spread
from lockstep.processes.children import module_environment
from lockstep.run.environment import packages, processor_type

HOOK = "def on_iteration(iteration):\n    return {'twice': 2.0 * iteration.number}\n"
HALFCHEETAH = ("mujoco", "--env", "HalfCheetah-v5")
WORKS: Mapping[str, tuple[int, Sequence[str]]] = {
    "`mujoco` on HalfCheetah-v5, 1 rank": (10, (*HALFCHEETAH, "--ranks", "1", "--total-steps", "122880")),
    "`mujoco` on HalfCheetah-v5, 2 ranks": (10, (*HALFCHEETAH, "--ranks", "2", "--total-steps", "204800")),
    "the same, rarer": (100, (*HALFCHEETAH, "--ranks", "2", "--total-steps", "614400")),
    "CartPole-v1, iterations of 256 steps, 2 ranks": (
        10,
        (
            *("--config", str(Path(__file__).with_name("cartpole_256.yaml")), "--plan.shards", "2"),
            *("--ranks", "2", "--total-steps", "600000"),
        ),
    ),
}
"""Iterations between two evaluations, and the words of `lockstep train`, by name."""
EPISODES = 5
NOTES = """
An evaluation plays 5 episodes with the most probable actions and 5 with sampled ones: up to 10,000 steps of HalfCheetah, while 10 iterations train 20,480 steps,
and up to 5,000 steps of CartPole, while 10 iterations train 2,560 steps. A run that leaves a core idle is hardly slower: the goal of 3% is met. With ranks on
all cores, the evaluation takes its time from one of them, and all others wait for this rank. On HalfCheetah, the start of the evaluating process and its first
evaluation take 2.8 s of CPU time, and each other evaluation 0.7 s, half of it in MuJoCo. Three ways were tried to lower the cost: ranks that keep their cores (below);
episodes that are played at the same time, which take 0.4 (CartPole) to 0.6 (HalfCheetah) of the CPU time of episodes one after the other; and actions that are selected by
kernels, which take 0.8 of the CPU time of those by PyTorch, and did not change the ratios beyond their spread.

`mujoco` on HalfCheetah-v5 with 2 ranks was also trained with and without the evaluation alone, by the version before and after ranks were bound to cores and
stopped yielding theirs to the evaluation, on a machine with other load. Steps/s in three repeats, in turn; with evaluation, the ratio of after to before is
1.25 (1.18 … 1.60):

| | without evaluation | with evaluation |
| --- | --- | --- |
| before | 6,096, 6,179, 6,223 | 5,000, 4,818, 6,544 |
| after | 7,513, 6,557, 6,454 | 6,264, 7,719, 7,718 |
"""
PERIOD = 2.0
"""Seconds between two requests of the page."""
UNCOUNTED = 3
"""Iterations at the start that are not counted."""


@contextmanager
def dashboard(folder: Path) -> Iterator[None]:
    """Serve the runs in `folder`, and ask for all of them every two seconds."""
    command = [sys.executable, "-m", "lockstep", "dashboard", str(folder), "--port", "0"]
    ended = threading.Event()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=module_environment()) as server:
        assert server.stdout is not None
        client = threading.Thread(target=_poll, args=(server.stdout.readline().strip(), ended))
        client.start()
        try:
            yield
        finally:
            ended.set()
            client.join()
            server.terminate()


def _poll(address: str, ended: threading.Event) -> None:
    """Ask the dashboard at an address with a token for all runs, in turn, until the end."""
    server, _, token = address.partition("?")
    while not ended.wait(PERIOD):
        with urlopen(f"{server}runs?{token}") as answer:
            runs = json.load(answer)["runs"]
        for run in runs:
            urlopen(f"{server}runs/{run['key']}?{token}").read()


def speed(every: int, words: Sequence[str], *, observed: bool) -> float:
    """Train one run, if `observed` with an evaluation after `every` iterations, and return its environment steps per second."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        (folder / "measured_hook.py").write_text(HOOK)
        command = [sys.executable, "-m", "lockstep", "train", *words, "--out", temporary, "--name", "run"]
        command += ["--run.progress", "off"]
        environment = module_environment()
        environment["PYTHONPATH"] = os.pathsep.join([temporary, environment.get("PYTHONPATH", "")])
        if observed:
            command += ["--run.evaluate-every", str(every), "--run.evaluate-episodes", str(EPISODES)]
            command += ["--run.hooks", "measured_hook"]
            with dashboard(folder):
                subprocess.run(command, env=environment, check=True, capture_output=True, cwd=temporary)
        else:
            subprocess.run(command, env=environment, check=True, capture_output=True, cwd=temporary)
        rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    assert ("twice" in rows[-1]) == observed
    seconds = sum(row["t_iter"] for row in rows[UNCOUNTED:])
    return float(rows[-1]["env_steps"] - rows[UNCOUNTED - 1]["env_steps"]) / seconds


def page(results: Mapping[str, Mapping[str, Sequence[float]]], machine: str) -> str:
    """Return the Markdown page."""
    lines = [
        "# Cost of evaluation, a hook and the dashboard",
        "",
        "    python benchmarks/observed.py",
        "",
        f"Speed with evaluations of {EPISODES} episodes, a hook and the dashboard, relative to the run without them: median of pairs of runs,",
        f"minimum and maximum. {machine}.",
        "",
        "| | iterations between evaluations | pairs | steps/s without | steps/s with | ratio |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for work, found in results.items():
        count = min(map(len, found.values()))
        plain, observed = (list(found[name][:count]) for name in ("plain", "observed"))
        ratio = ratios(observed, plain)
        cells = f"{spread(plain).median:,.0f} | {spread(observed).median:,.0f}"
        lines.append(
            f"| {work} | {WORKS[work][0]} | {count} | {cells} | {ratio.median:.3f} ({ratio.least:.3f} … {ratio.most:.3f}) |"
        )
    return "\n".join(lines) + "\n" + NOTES


def main() -> None:
    """Measure all runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("observed.json"))
    arguments = parser.parse_args()
    torch = packages()["torch"]
    machine = f"{os.cpu_count()} cores of {processor_type(False)}, PyTorch {torch}"
    results: dict[str, dict[str, list[float]]] = {}

    def save(_: int, name: str, found: float) -> None:
        work, _, variant = name.rpartition(": ")
        results.setdefault(work, {"plain": [], "observed": []})[variant].append(found)
        print(f"{name}  {found:,.0f} steps/s", file=sys.stderr, flush=True)
        arguments.out.write_text(json.dumps({"machine": machine, "results": results}, indent=1) + "\n")
        if all(all(variants.values()) for variants in results.values()):
            arguments.out.with_suffix(".md").write_text(page(results, machine))

    runs = {
        f"{work}: {variant}": partial(speed, *WORKS[work], observed=variant == "observed")
        for work in WORKS
        for variant in ("plain", "observed")
    }
    interleave(runs, arguments.repeats, save)


if __name__ == "__main__":
    main()

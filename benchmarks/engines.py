"""Measure environment steps per CPU second of every engine. `env.engine: auto` selects engines by these measurements.

    python benchmarks/engines.py [--out benchmarks/engines.json] [--only CartPole-v1] [--seconds 0.06] [--repeats 5]
    python benchmarks/engines.py --out benchmarks/atari.json --only ALE/Pong-v5 ALE/Breakout-v5 --seconds 2

The measurement uses lockstep's engine classes with random actions that were drawn before, so it includes flattening, automatic resets and the records for
exact resume. The process is bound to one core, as a rank is if there is one rank per core. The CPU time of all its threads is counted, so that other
load on the machine does not change the result. `gymnasium-async` may use all cores and is measured by wall time, per second and not per core. Repeats are
the outer loop; medians are reported. Reset rows count as steps.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import json
import platform
import statistics
import sys
import time
from importlib.metadata import version
from pathlib import Path

import envpool
import gymnasium as gym
import numpy as np

from lockstep.envs.atari import is_game
from lockstep.envs.catalog import known_environments, make_engine
from lockstep.envs.engine import Engine
from lockstep.envs.settings import EnvConfig
from lockstep.randomness import stream

PROCESSES = ("CartPole-v1", "Reacher-v5", "HumanoidStandup-v5")
"""Environments in which `gymnasium-async` is measured: a light, a medium and a heavy one."""
COUNTS = (1, 2, 4, 8, 16, 64)
CHUNK = 16
"""Steps of the whole shard between two readings of the clock."""


def engines(env_id: str, count: int) -> list[str]:
    """Return the names of the engines to measure for `count` environments of `env_id`."""
    names = ["gymnasium"]
    if is_game(env_id):
        return [*names, "envpool", "ale"]
    if getattr(gym.registry.get(env_id), "vector_entry_point", None) is not None:
        names.append("gymnasium-vector")
    if env_id in envpool.list_all_envs():
        names.append("envpool")
    if env_id in PROCESSES and count in (2, 8):
        names.append("gymnasium-async")
    return names


def drawn_actions(engine: Engine, count: int) -> np.ndarray:
    """Draw random actions for 256 steps: `[256, B]` or `[256, B, A]`."""
    spaces, generator = engine.spaces, stream(0, "benchmark")
    if spaces.discrete_actions is not None:
        return generator.integers(0, spaces.discrete_actions, (256, count))
    low, high = spaces.action_low, spaces.action_high
    return generator.uniform(low, high, (256, count, spaces.action_size)).astype(np.float32)


def steps_per_second(env_id: str, name: str, count: int, seconds: float) -> float:
    """Measure one engine for about `seconds`, after its creation and 4 steps. Return environment steps per second."""
    cores = os.sched_getaffinity(0)
    # gymnasium-async has one process per environment, so it gets all cores
    os.sched_setaffinity(0, cores if name == "gymnasium-async" else {max(cores)})
    engine = make_engine(EnvConfig(id=env_id, engine=name, count=count), seed=1, shard=0, shards=1)  # type: ignore[arg-type]
    try:
        actions = drawn_actions(engine, count)
        engine.reset()
        for row in actions[:4]:
            engine.step(row)
        clock = time.perf_counter if name == "gymnasium-async" else time.process_time
        steps, start = 0, clock()
        while (elapsed := clock() - start) < seconds:
            for row in actions[steps % 256 : steps % 256 + CHUNK]:
                engine.step(row)
            steps += CHUNK
    finally:
        engine.close()
        os.sched_setaffinity(0, cores)
    return steps * count / elapsed


def measure(environments: tuple[str, ...], seconds: float, repeats: int) -> list[dict[str, object]]:
    """Measure all engines and return one record per environment, count and engine."""
    measurements: dict[tuple[str, int, str], list[float]] = {}
    for repeat in range(repeats):
        for env_id in environments:
            for count in COUNTS:
                names = engines(env_id, count)
                for name in names if len(names) > 1 else ():
                    rate = steps_per_second(env_id, name, count, seconds)
                    measurements.setdefault((env_id, count, name), []).append(rate)
            print(f"repeat {repeat + 1}/{repeats}: {env_id}", file=sys.stderr, flush=True)
    return [
        {
            "environment": env_id,
            "count": count,
            "engine": name,
            "steps_per_second": round(statistics.median(rates)),
            "least": round(min(rates)),
            "most": round(max(rates)),
        }
        for (env_id, count, name), rates in measurements.items()
    ]


def main() -> None:
    """Measure all engines and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("engines.json"))
    parser.add_argument("--only", nargs="*", default=[line.env_id for line in known_environments()])
    parser.add_argument("--seconds", type=float, default=0.06)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    records = measure(tuple(arguments.only), arguments.seconds, arguments.repeats)
    packages = ("gymnasium", "envpool", "mujoco", "Box2D", "ale-py", "opencv-python-headless", "numpy")
    result = {
        "command": "python benchmarks/engines.py " + " ".join(sys.argv[1:]),
        "python": platform.python_version(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "versions": {package: version(package) for package in packages},
        "seconds": arguments.seconds,
        "repeats": arguments.repeats,
        "records": records,
    }
    head = json.dumps({key: value for key, value in result.items() if key != "records"}, indent=1)
    lines = ",\n".join("  " + json.dumps(record) for record in records)
    arguments.out.write_text(f'{head[:-2]},\n "records": [\n{lines}\n ]\n}}\n')


def processor() -> str:
    """Return the CPU model from /proc/cpuinfo, or the machine type if the file does not name it."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()

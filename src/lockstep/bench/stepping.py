"""Speed of the environments without training: the same engines in the same number of processes, with random actions.

    python -m lockstep.bench.stepping CONFIG RANK RANKS SECONDS [MODULE]

runs one of these processes. It prints `ready`, waits for a line on stdin, steps its environments, and prints the steps per second.
"""

import json
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lockstep.algorithm.plan import Plan
from lockstep.config import Config
from lockstep.config.decode import decode, encode
from lockstep.envs.catalog import make_engine
from lockstep.envs.engine import Engine
from lockstep.envs.modules import import_environments
from lockstep.processes.children import ProcessFailed, child, module_command, module_environment
from lockstep.processes.cores import usable_cores
from lockstep.randomness import stream
from lockstep.runtime.threads import arithmetic_threads, limit_threads, share_of_cores

__all__ = ["engine_rate"]

_DRAWN = 256
"""Number of steps whose actions are sampled in advance. The same actions are then used again and again."""
_CHUNK = 16
"""Steps between two readings of the clock."""
_WARMUP = 0.2
"""Seconds of stepping before the measurement."""


def engine_rate(config: Config, ranks: int, seconds: float) -> float:
    """Measure the environment steps per second of all playing ranks of a resolved config together, without reset rows."""
    playing = Plan.make(config.plan, ranks).playing
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder, ExitStack() as stack:
        file = Path(folder) / "config.json"
        file.write_text(json.dumps(encode(config)))
        module = [config.env.module] if config.env.module else []
        arguments = [str(ranks), str(seconds), *module]
        commands = [module_command("lockstep.bench.stepping", str(file), str(rank), *arguments) for rank in playing]
        processes = [stack.enter_context(child(command, module_environment(), reads=True)) for command in commands]
        for process in processes:
            assert process.stdout is not None
            if process.stdout.readline() != "ready\n":
                break  # the process has exited; `child` reports the error
        else:
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            return sum(float(process.stdout.readline() or 0) for process in processes if process.stdout)
    raise ProcessFailed("a process that steps environments exited before its first step")


def main(argv: Sequence[str]) -> int:
    """Run one process: step the engines of all shards that a rank plays."""
    config = decode(json.loads(Path(argv[0]).read_text()), Config())
    rank, ranks, seconds = int(argv[1]), int(argv[2]), float(argv[3])
    import_environments(argv[4] if len(argv) > 4 else None)
    plan = Plan.make(config.plan, ranks)
    limit_threads(arithmetic_threads(config.runtime, rank in plan.training))
    cores, shards = share_of_cores(rank, ranks, usable_cores()), len(plan.shards)
    engines = [make_engine(config.env, config.run.seed, shard, shards, cores) for shard in plan.played_by(rank)]
    actions = [_actions(engine, config.env.count // shards, config.run.seed) for engine in engines]
    for engine in engines:
        engine.reset()
    try:
        _step(engines, actions, _WARMUP)
        print("ready", flush=True)
        if sys.stdin.readline():
            print(_step(engines, actions, seconds), flush=True)
    finally:
        for engine in engines:
            engine.close()
    return 0


def _actions(engine: Engine, count: int, seed: int) -> NDArray[np.generic]:
    """Sample random actions, `[256, B]` or `[256, B, A]`. Action masks are ignored."""
    spaces, generator = engine.spaces, stream(seed, "bench-actions")
    if spaces.discrete_actions is not None:
        return generator.integers(spaces.discrete_actions, size=(_DRAWN, count))
    low, high = np.maximum(spaces.action_low, -1e3), np.minimum(spaces.action_high, 1e3)
    discrete = generator.integers(0, spaces.choices, (_DRAWN, count, len(spaces.choices)))
    continuous = generator.uniform(low, high, (_DRAWN, count, spaces.continuous_size))
    return np.concatenate([discrete, continuous], axis=2).astype(np.float32)


def _step(engines: Sequence[Engine], actions: Sequence[NDArray[np.generic]], seconds: float) -> float:
    """Step all engines in turn, as a rank with several shards does. Return the environment steps per second."""
    done = [np.zeros((_CHUNK, rows.shape[1]), dtype=bool) for rows in actions]
    steps, turn, begun, elapsed = 0, 0, time.perf_counter(), 0.0
    while elapsed < seconds or not steps:
        for row in range(_CHUNK):
            for shard, engine in enumerate(engines):
                _, _, terminated, truncated = engine.step(actions[shard][(turn + row) % _DRAWN])
                np.logical_or(terminated, truncated, out=done[shard][row])
        turn += _CHUNK
        # every end of an episode is followed by one reset row, which is not a step
        steps += sum(ends.size - int(np.count_nonzero(ends)) for ends in done)
        elapsed = time.perf_counter() - begun
    return float(steps / elapsed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

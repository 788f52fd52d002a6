"""Measure the memory of Atari rollouts relative to the bytes of their images. Write benchmarks/images.json.

    python benchmarks/images.py [--steps 128 1152 2176]

Each process trains Pong for one iteration on one rank, with another rollout length. The growth of the peak resident set size is compared with the growth of the
bytes of the images.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

HERE = Path(__file__).parent
COUNT, MINIBATCH = 8, 256
IMAGES = 4 * 84 * 84
CHILD = (
    "import resource, sys; from lockstep.cli.main import main; main(sys.argv[1:]); "
    "print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)"
)


def peak(steps: int, shards: int) -> int:
    """Return the peak resident set size in bytes of a run of one iteration."""
    with tempfile.TemporaryDirectory() as folder:
        words = [
            "train",
            "atari",
            "--env.id",
            "ALE/Pong-v5",
            "--rollout.steps",
            steps,
            "--ppo.epochs",
            1,
            "--plan.shards",
            shards,
        ]
        words += ["--ppo.minibatches", COUNT * steps // MINIBATCH, "--total-steps", COUNT * steps, "--out", folder]
        words += ["--ranks", 1, "--run.checkpoint-every", 1000, "--run.progress", "off"]
        command = [sys.executable, "-c", CHILD, *map(str, words)]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        finished = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    return int(finished.stdout.split()[-1])


def main() -> None:
    """Measure all lengths and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[128, 1152, 2176])
    arguments = parser.parse_args()
    rows = []
    for shards in (1, 2):
        sizes = [(steps, (steps + 1) * COUNT * IMAGES, peak(steps, shards)) for steps in arguments.steps]
        for (_, images_before, peak_before), (steps, images, peak_bytes) in pairwise(sizes):
            ratio = (peak_bytes - peak_before) / (images - images_before)
            row = {"shards": shards, "steps": steps, "image_bytes": images, "peak_bytes": peak_bytes, "growth": ratio}
            rows.append(row)
            print(
                f"{shards} shards, {steps} steps: images {images / 1e6:.0f} MB, peak {peak_bytes / 1e6:.0f} MB, growth {ratio:.2f}"
            )
    (HERE / "images.json").write_text(json.dumps({"command": " ".join(sys.argv), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Memory that rollouts of Atari take, beside their bytes, into benchmarks/images.json.

    python benchmarks/images.py [--steps 128 1152 2176]

Trains Pong for one iteration on one rank with rollouts of several lengths, in a process each, and compares the growth of its largest resident set with the
growth of the images' bytes.
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
    """Bytes of the largest resident set of a run of one iteration."""
    with tempfile.TemporaryDirectory() as folder:
        words = ["train", "pong", "--rollout.steps", steps, "--ppo.epochs", 1, "--plan.shards", shards]
        words += ["--ppo.minibatches", COUNT * steps // MINIBATCH, "--total-steps", COUNT * steps, "--out", folder]
        words += ["--ranks", 1, "--run.checkpoint-every", 1000, "--run.progress", "off"]
        command = [sys.executable, "-c", CHILD, *map(str, words)]
        environ = os.environ | {"OMP_NUM_THREADS": "1"}
        finished = subprocess.run(command, capture_output=True, text=True, check=True, env=environ)
    return int(finished.stdout.split()[-1])


def main() -> None:
    """Measures and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[128, 1152, 2176])
    own = parser.parse_args()
    rows = []
    for shards in (1, 2):
        found = [(steps, (steps + 1) * COUNT * IMAGES, peak(steps, shards)) for steps in own.steps]
        for (_, less, small), (steps, more, large) in pairwise(found):
            ratio = (large - small) / (more - less)
            rows.append({"shards": shards, "steps": steps, "image_bytes": more, "peak_bytes": large, "growth": ratio})
            print(
                f"{shards} shards, {steps} steps: images {more / 1e6:.0f} MB, peak {large / 1e6:.0f} MB, growth {ratio:.2f}"
            )
    (HERE / "images.json").write_text(json.dumps({"command": " ".join(sys.argv), "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""Train the first 10 iterations of every preset that has an environment, with portable bits, and compare their digests with benchmarks/digests.json.

    python benchmarks/digests.py [PRESET …] [--compile off on] [--emulate Haswell]

With `runtime.bits: portable` digests are the same on every x86-64 processor with AVX2 and FMA, so the file has one per preset, compiled and not, with the types of
the processors that gave it. Digests and processors that are not recorded yet are added. The exit code is 1 if one differs. The pinned packages of constraints.txt have to be installed. A deliberate change of the algorithm or of a preset makes all of them out of date: remove the file first.

`--emulate` runs the presets on a processor that qemu-x86_64 (Debian's qemu-user) emulates, which takes some 30 times as long.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lockstep import presets
from lockstep.processes.portable import portable_variables
from lockstep.run.environment import processor_type

HERE = Path(__file__).parent
RESULTS = HERE / "digests.json"
ITERATIONS = 10


def on_iteration(iteration: Any) -> None:
    """End training with the last recorded iteration. This module is the hook of its own runs."""
    if iteration.number + 1 >= ITERATIONS:  # training ends after the next iteration
        iteration.stop()


def words(preset: str, compiled: str, out: Path) -> list[str]:
    """Return the arguments of `lockstep`, to be called in the folder of this file."""
    runtime = ["--runtime.compile", compiled, "--runtime.bits", "portable", "--restarts", "0"]
    options = [*runtime, "--run.hooks", "digests", "--run.progress", "off"]
    return ["train", preset, *options, "--ranks", "1", "--out", str(out), "--name", preset]


def last_digest(run: Path) -> str:
    """Return the digest of the last iteration of a run."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["iteration"] == ITERATIONS
    return str(rows[-1]["digest"])


def compute(preset: str, compiled: str, emulated: str | None) -> str | None:
    """Train and return the digest; None, with a line, if the preset can't be trained here or not in that way.

    `emulated` is the name of an emulated processor, None for that of the machine.
    """
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))}
    prefix = ["qemu-x86_64", "-cpu", emulated] if emulated else []
    if emulated:
        environ |= portable_variables()  # without them, the process would start itself again, without the emulator
    with tempfile.TemporaryDirectory() as folder:
        command = [*prefix, sys.executable, "-m", "lockstep", *words(preset, compiled, Path(folder))]
        finished = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False, env=environ)
        if finished.returncode:
            print(f"{preset}, compile {compiled}: {finished.stderr.strip().splitlines()[-1]}", flush=True)
            return None
        return last_digest(Path(folder) / preset)


def record(preset: str, compiled: str, digest: str, processor: str) -> str:
    """Return the recorded digest. Add the digest if there is none, and the type of the processor if it gives the recorded one."""
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    entry = results.setdefault(preset, {}).setdefault(f"compile {compiled}", {"digest": digest, "processors": []})
    if entry["digest"] == digest:
        entry["processors"] = sorted({*entry["processors"], processor})
    RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
    return str(entry["digest"])


def main() -> int:
    """Train, and write the file after every run."""
    trainable = [name for name in presets.names() if presets.family(name) is None]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("presets", nargs="*", default=trainable, metavar="PRESET")
    parser.add_argument("--compile", nargs="+", choices=("off", "on"), default=["off", "on"])
    parser.add_argument("--emulate", metavar="PROCESSOR")
    arguments = parser.parse_args()
    processor = f"{arguments.emulate}, emulated" if arguments.emulate else processor_type(portable=False)
    differ = 0
    for compiled in arguments.compile:
        for preset in arguments.presets:
            digest = compute(preset, compiled, arguments.emulate)
            if digest is None:
                continue
            recorded = record(preset, compiled, digest, processor)
            differ += recorded != digest
            state = "as recorded" if recorded == digest else f"differs from {recorded}"
            print(f"{preset}, compile {compiled}: {digest} {state}", flush=True)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())

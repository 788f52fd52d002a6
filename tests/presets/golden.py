"""Short runs of the family presets, whose learning curves and digests are recorded in golden.json.

    python -m tests.presets.golden

records them again, which a deliberate change of the algorithm or of a preset requires. Digests are recorded by processor type: processors
round differently.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import torch

from lockstep.run.environment import processor_type

GOLDEN = Path(__file__).with_name("golden.json")


class Case(NamedTuple):
    """A short run of a preset."""

    env_id: str
    steps: int
    least: float | None
    """Mean return of the last 20 episodes that any processor reaches. None: the run is too short to learn."""
    flags: tuple[str, ...] = ()

    def words(self, preset: str) -> list[str]:
        """Return the arguments of `lockstep`."""
        run = [
            "--seed",
            "1",
            "--name",
            preset,
            "--total-steps",
            str(self.steps),
            "--run.progress",
            "off",
            "--ranks",
            "1",
        ]
        return ["train", preset, "--env", self.env_id, *run, "--runtime.compile", "off", *self.flags]


CASES = {
    "classic": Case("CartPole-v1", 8_192, 40),
    "box2d": Case("LunarLander-v3", 20_480, -120),
    "mujoco": Case("InvertedPendulum-v5", 12_288, 40),
    "memory": Case("cartpole-no-velocity", 4_096, 20),
    "sparse": Case("pendulum-sparse", 8_192, None),
    "atari": Case("ALE/Pong-v5", 2_048, None),
}


class Outcome(NamedTuple):
    """Result of a run."""

    curve: list[float | None]
    """Mean return of the last 20 episodes after each iteration."""
    digest: str

    @classmethod
    def read(cls, folder: Path) -> "Outcome":
        """Read it from a run folder."""
        rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        returns = [row["return_mean_20"] for row in rows]
        return cls([value if value is None else float(f"{value:.6g}") for value in returns], rows[-1]["digest"])


def processor() -> str:
    """Return what bits depend on, by which digests are recorded: the processor's model and instructions, and the version of PyTorch."""
    return f"{processor_type(portable=False)}, torch {torch.__version__}"


def main() -> None:
    """Run all cases and record them. Digests of other processors are kept where the curve is the same."""
    recorded = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    content = {}
    for preset, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "lockstep", *case.words(preset), "--out", folder], check=True)
            outcome = Outcome.read(Path(folder) / preset)
        before = recorded.get(preset, {})
        digests = before.get("digests", {}) if before.get("curve") == outcome.curve else {}
        content[preset] = {"curve": outcome.curve, "digests": {**digests, processor(): outcome.digest}}
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

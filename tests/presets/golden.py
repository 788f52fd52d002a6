"""Short runs of the family presets, whose learning curves and digests are recorded in golden.json.

    python -m tests.presets.golden

records them again, which a deliberate change of the algorithm or of a preset requires. The runs have portable bits, so that one digest holds on
all processors, for the pinned packages.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

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
        runtime = ["--runtime.bits", "portable"]
        return ["train", preset, "--env", self.env_id, *run, *runtime, *self.flags]


CASES = {
    "classic": Case("CartPole-v1", 6_144, 40),
    "box2d": Case("LunarLander-v3", 40_960, -120),
    "mujoco": Case("InvertedPendulum-v5", 8_192, 25),
    "memory": Case("cartpole-no-velocity", 2_048, 20, ("--rollout.steps", "128")),
    "sparse": Case("pendulum-sparse", 4_096, None),
    "atari": Case("ALE/Pong-v5", 512, None, ("--rollout.steps", "32")),
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


def main() -> None:
    """Run all cases and record them."""
    content = {}
    for preset, case in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-m", "lockstep", *case.words(preset), "--out", folder], check=True)
            content[preset] = Outcome.read(Path(folder) / preset)._asdict()
    GOLDEN.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()

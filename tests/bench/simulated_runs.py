"""Run folders for tests of predictions, written without training."""

import json
import struct
from collections.abc import Callable
from pathlib import Path

from lockstep.config import VERSION
from lockstep.config.compose import load
from lockstep.config.decode import encode
from lockstep.experiment.resolve import resolve
from lockstep.phases import PHASES
from lockstep.run.folder import RunFolder

ROWS, PARAMETERS = 22, 9155
Change = Callable[[Path], object]


def make_run(folder: Path, ranks: int = 1, kind: str = "coupled", lag: int = 0, restarted: int = 0) -> RunFolder:
    """Write a run of 4 shards, whose iterations take 1.00, 1.01, … seconds. The first two take 100 times as long."""
    plan = {"shards": 4, "kind": kind, "lag": lag}
    config = resolve(load(None, None, {"plan": plan, "runtime": {"device": "cpu", "compile": "off"}}), ranks)
    run = RunFolder.create(folder, {"version": VERSION, **encode(config)}, {})
    shares = dict(zip(PHASES, (0.4, 0.4, 0.1, 0.05, 0.03, 0.02), strict=True))
    lines = []
    for index in range(ROWS):
        seconds = (1 + index / 100) * (100 if index < 2 else 1)
        times = {"iter": seconds, **{phase: seconds * share for phase, share in shares.items()}}
        row = {"iteration": index + 1, "env_steps": 2000 * (index + 1), "update_steps": 16}
        row |= {f"t_{name}": value for name, value in times.items()}
        if kind != "coupled":
            row |= {f"player_t_{name}": value / 2 for name, value in times.items()}
        lines.append(json.dumps(row))
    (folder / "metrics.jsonl").write_text("\n".join([*lines, ""]))
    events = [{"iteration": 0, "ranks": 1}, {"iteration": restarted, "ranks": ranks}][1 - bool(restarted) :]
    start = {
        "event": "start",
        "time": "2026-01-01T00:00:00+00:00",
        "last": ROWS,
        "plan": kind,
        "host": "a",
        "packages": {},
    }
    (folder / "starts.jsonl").write_text("".join(json.dumps({**start, **event}) + "\n" for event in events))
    write_optimizer(json.dumps({"first": {"dtype": "F32", "shape": [PARAMETERS], "data_offsets": [0, 4]}}).encode())(
        folder
    )
    return run


def write_optimizer(header: bytes, size: int | None = None) -> Change:
    """Return a change that writes the header of the optimizer's file. `size` is the number of bytes that it claims to have."""

    def change(run: Path) -> None:
        path = run / "checkpoints" / "00000022" / "optimizer.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(struct.pack("<Q", len(header) if size is None else size) + header)

    return change

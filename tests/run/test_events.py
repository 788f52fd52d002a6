"""What is written here, TensorBoard reads."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from lockstep.run import events
from lockstep.run.events import EventFile
from lockstep.run.loggers import TensorBoard


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = EventAccumulator(str(folder)).Reload()
    return {tag: [(one.step, one.value) for one in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.parametrize("length", [4, 5, 8, 60, 61, 3000, 100_000])
def test_the_checksum_is_that_of_tensorboard(length: int) -> None:
    content = bytes((7 * place * place + length) % 256 for place in range(length))
    assert events._checksum(content) == masked_crc32c(content).to_bytes(4, "little")


def test_tensorboard_reads_all_points(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "tb", 1)
    steps = [1, 127, 128, 300_000, 2**40]
    for number, step in enumerate(steps):
        file.add(
            step, {"train/loss": number / 4, "rollout/" + "x" * 200: -1.0} | ({"time/fps": 7} if number == 2 else {})
        )
    file.close()
    assert read(tmp_path / "tb") == {
        "train/loss": [(step, number / 4) for number, step in enumerate(steps)],
        "rollout/" + "x" * 200: [(step, -1.0) for step in steps],
        "time/fps": [(128, 7.0)],
    }


def test_numbers_that_are_too_large_are_infinite(tmp_path: Path) -> None:
    file = EventFile(tmp_path, 1)
    file.add(1, {"a": 1e300, "b": float("-inf"), "c": 1e-300, "d": 2**70})
    file.close()
    assert read(tmp_path) == {
        "a": [(1, float("inf"))], "b": [(1, float("-inf"))], "c": [(1, 0.0)], "d": [(1, 2.0**70)],
    }  # fmt: skip


def test_what_is_done_again_is_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for begun, first in ((100, 1), (200, 3)):
        monkeypatch.setattr(events.time, "time", lambda begun=begun: begun)
        logger = TensorBoard(tmp_path, 10 * first)
        for iteration in range(first, 6):
            logger.write(
                {"iteration": iteration, "env_steps": 10 * iteration, "return_mean": None, "kl": begun, "digest": "a"}
            )
        logger.close()
    expected = [(10, 100.0), (20, 100.0), (30, 200.0), (40, 200.0), (50, 200.0)]
    assert read(tmp_path)["train/kl"] == expected
    assert read(tmp_path).keys() == {"time/iteration", "time/env_steps", "train/kl"}


def test_a_kill_leaves_what_was_flushed(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from lockstep.run.events import EventFile\n"
        "file = EventFile(Path(sys.argv[1]), 1); file.add(1, {'a': 1}); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert read(tmp_path) == {"a": [(1, 1.0)]}

"""TensorBoard reads the event files."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c
from tensorboard.context import RequestContext
from tensorboard.plugins.hparams import api_pb2, backend_context, list_session_groups

from lockstep.config import VERSION
from lockstep.telemetry import tensorboard as events
from lockstep.telemetry.loggers import TensorBoard
from lockstep.telemetry.tensorboard import EventFile


def read(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events_read = EventAccumulator(str(folder)).Reload()
    return {
        tag: [(point.step, point.value) for point in events_read.Scalars(tag)] for tag in events_read.Tags()["scalars"]
    }


@pytest.mark.parametrize("length", [4, 5, 8, 60, 61, 512, 513, 515, 516, 1025, 3000, 100_000, 1_000_003])
def test_the_checksum_equals_that_of_tensorboard(length: int) -> None:
    content = bytes((7 * index * index + length) % 256 for index in range(length))
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


def test_values_beyond_float32_become_infinite(tmp_path: Path) -> None:
    file = EventFile(tmp_path, 1)
    file.add(1, {"a": 1e300, "b": float("-inf"), "c": 1e-300, "d": 2**70})
    file.close()
    assert read(tmp_path) == {
        "a": [(1, float("inf"))], "b": [(1, float("-inf"))], "c": [(1, 0.0)], "d": [(1, 2.0**70)],
    }  # fmt: skip


def test_repeated_iterations_are_shown_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for begun, first in ((100, 1), (200, 3)):
        monkeypatch.setattr(events.time, "time", lambda begun=begun: begun)
        logger = TensorBoard(tmp_path, 10 * first, {"run": {"seed": 1}})
        for iteration in range(first, 6):
            logger.write(
                {"iteration": iteration, "env_steps": 10 * iteration, "return_mean": None, "kl": begun, "digest": "a"}
            )
        logger.close()
    expected = [(10, 100.0), (20, 100.0), (30, 200.0), (40, 200.0), (50, 200.0)]
    assert read(tmp_path)["train/kl"] == expected
    assert read(tmp_path).keys() == {"time/iteration", "time/env_steps", "train/kl"}


def test_run_is_a_row_of_the_hparams_tab(tmp_path: Path) -> None:
    config = {
        "version": VERSION,
        "ppo": {"clip": 0.2, "separate": False, "epochs": 4},
        "env": {"id": "Pong", "threads": None},
    }
    config["policy"] = {"hidden": [64, 32]}
    for name in ("one", "two"):
        logger = TensorBoard(tmp_path / name, 1, config | {"run": {"name": name}})
        logger.write({"iteration": 1, "env_steps": 10, "return_mean": 2.5})
        logger.close()
    (first, second) = sessions(tmp_path)
    assert first.hparams["run.name"].string_value == "one"
    expected = {"ppo.clip": 0.2, "ppo.separate": False, "ppo.epochs": 4.0, "env.id": "Pong", "env.threads": "none"}
    expected |= {"policy.hidden": "[64, 32]", "run.name": "two"}
    assert {name: getattr(value, value.WhichOneof("kind")) for name, value in second.hparams.items()} == expected
    assert {value.name.tag: value.value for value in second.metric_values}["rollout/return_mean"] == 2.5


def sessions(folder: Path) -> list[Any]:
    """Return the rows of TensorBoard's HParams tab, sorted by the name of the run."""
    multiplexer = EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload()
    provider = MultiplexerDataProvider(multiplexer, str(folder))
    backend = backend_context.Context(SimpleNamespace(data_provider=provider, flags=None))
    request = api_pb2.ListSessionGroupsRequest(start_index=0, slice_size=9, allowed_statuses=range(5))
    groups = list_session_groups.Handler(RequestContext(), backend, "", request).run().session_groups
    return sorted(groups, key=lambda group: group.hparams["run.name"].string_value)


def test_gif_is_written_as_an_image(tmp_path: Path) -> None:
    content = b"GIF89a" + bytes(range(256)) * 2000
    file = EventFile(tmp_path, 1)
    file.add_image(300, "first", content, 240, 160)
    file.close()
    (image,) = EventAccumulator(str(tmp_path)).Reload().Images("first")
    assert (image.step, image.width, image.height, image.encoded_image_string) == (300, 240, 160, content)


def test_flushed_points_survive_a_kill(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from lockstep.telemetry.tensorboard import EventFile\n"
        "file = EventFile(Path(sys.argv[1]), 1); file.add(1, {'a': 1}); file.flush(); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert read(tmp_path) == {"a": [(1, 1.0)]}


def test_many_starts_are_one_curve_in_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live = EventAccumulator(str(tmp_path))
    for start in range(66):
        monkeypatch.setattr(events.time, "time", lambda start=start: 1000.0 - 3 * start)  # the clock is set back
        file = EventFile(tmp_path, start + 1)
        file.add(start + 1, {"loss": start})
        file.close()
        live.Reload()  # TensorBoard follows the run meanwhile
    assert len(list(tmp_path.iterdir())) == 1
    expected = [(start + 1, float(start)) for start in range(66)]
    assert read(tmp_path)["loss"] == expected
    assert [(point.step, point.value) for point in live.Scalars("loss")] == expected
    assert b"\x3a\x02\x08\x01" not in next(tmp_path.iterdir()).read_bytes()  # no start hides anything


@pytest.mark.parametrize("cut", [1, 5, 17, 40])
def test_incomplete_record_of_a_killed_process_is_replaced(tmp_path: Path, cut: int) -> None:
    file = EventFile(tmp_path, 1)
    for step in (1, 2, 300):
        file.add(step, {"loss": step})
    file.close()
    (path,) = tmp_path.iterdir()
    os.truncate(path, path.stat().st_size - cut)
    file = EventFile(tmp_path, 2)
    file.add(2, {"loss": -2})
    file.close()
    assert read(tmp_path)["loss"] == [(1, 1.0), (2, -2.0)]


def test_points_that_are_repeated_replace_those_of_a_killed_process(tmp_path: Path) -> None:
    live = EventAccumulator(str(tmp_path))
    for steps, value in (((1, 2, 3), 1.0), ((2, 3, 4), 2.0)):
        file = EventFile(tmp_path, steps[0])
        for step in steps:
            file.add(step, {"loss": value})
        file.close()
        live.Reload()
    expected = [(1, 1.0), (2, 2.0), (3, 2.0), (4, 2.0)]
    assert read(tmp_path)["loss"] == expected
    assert [(point.step, point.value) for point in live.Scalars("loss")] == expected


@pytest.mark.parametrize("content", [b"", b"\x00" * 100, b"no event file"])
def test_damaged_file_is_left_and_another_one_follows(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "events.out.tfevents.0000002000.host.1.0000"
    damaged.write_bytes(content)
    monkeypatch.setattr(events.time, "time", lambda: 1000.0)
    file = EventFile(tmp_path, 1)
    file.add(5, {"loss": 5})
    file.close()
    assert damaged.read_bytes() == content
    assert sorted(path.name for path in tmp_path.iterdir())[1].startswith("events.out.tfevents.0000002001.")


def test_events_are_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "mine").write_bytes(b"mine")
    (tmp_path / "tb").mkdir()
    (tmp_path / "tb" / "events.out.tfevents.1.host").symlink_to(tmp_path / "mine")
    EventFile(tmp_path / "tb", 1).close()
    assert (tmp_path / "mine").read_bytes() == b"mine"

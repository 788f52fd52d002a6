"""`run.loggers` and `run.capture_video` from the command line: real packages, real processes, real files."""

import json
import os
import signal
import sqlite3
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.curves_server import KEY, serving
from tests.live_runs import digests, wait_for, words_of

SHORT = ("cartpole", "--rollout.steps", 32, "--ppo.minibatches", 2, "--ppo.epochs", 2, "--name", "first")
NO_KEY = {"WANDB_API_KEY": "", "WANDB_MODE": "", "HOME": "/nonexistent", "NETRC": "/nonexistent/netrc"}


def records(file: Path) -> Iterator[Any]:
    """Yield the records of a .wandb file, which has the log format of LevelDB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, message = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:
            place += 32768 - place % 32768
        _, length, kind = struct.unpack("<IHB", content[place : place + 7])
        message += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            record = Record()
            record.ParseFromString(message)
            message = b""
            yield record


def sidecars(run: Path) -> list[int]:
    """Process ids of the trackers and video recorders of a run, and of their children."""
    process_ids = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = words_of(process)
            if process.joinpath("stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                continue
        except OSError:
            continue
        if str(run).encode() in b"\0".join(words) and {b"track", b"video"} & {*words}:
            process_ids.append(int(process.name))
    return process_ids


@pytest.mark.slow
@pytest.mark.extra("wandb", "trackio")
def test_resumed_run_continues_the_same_wandb_and_trackio_runs(run_cli, tmp_path: Path) -> None:
    words = ("--run.loggers", "wandb", "trackio", "--run.progress", "off")
    first = run_cli("train", *SHORT, *words, "--total-steps", 1024, env=NO_KEY)
    assert first.rc == 0, first
    messages = [line for line in first.stderr.splitlines() if "press Ctrl-C" not in line]
    assert len(messages) == 1, first.stderr
    assert "no API key found and WANDB_MODE is not set: recording offline; upload later with `wandb sync" in messages[0]
    second = run_cli("resume", "first", "--total-steps", 2048, env={"WANDB_MODE": "offline"})
    assert second.rc == 0, second
    run = tmp_path / "runs" / "first"
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row["env_steps"] for row in rows]
    assert len(steps) == 8
    wandb_records = [record for file in sorted(run.glob("wandb/offline-run-*/*.wandb")) for record in records(file)]
    started = [record.run for record in wandb_records if record.WhichOneof("record_type") == "run"]
    assert len({one.run_id for one in started}) == 1
    assert {one.display_name for one in started} == {"first"}
    config = {update.key: json.loads(update.value_json) for update in started[0].config.update}
    assert config["ppo"]["minibatches"] == 2
    history = [record.history for record in wandb_records if record.WhichOneof("record_type") == "history"]
    assert [one.step.num for one in history] == steps
    items = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in history[-1].item}
    assert items["train/loss"] == rows[-1]["loss"]
    with sqlite3.connect(run / "trackio" / "lockstep.db") as database:
        trackio_steps = database.execute("select distinct run_name, step from metrics order by step").fetchall()
        assert database.execute("select count(distinct run_id) from metrics").fetchone() == (1,)
    database.close()
    assert trackio_steps == [("first", step) for step in steps]
    assert not (run / "logs").exists()


@pytest.mark.slow
@pytest.mark.extra("wandb", "imageio_ffmpeg")
def test_curves_and_videos_are_uploaded_and_a_resumed_run_continues_its_upload(run_cli, tmp_path: Path) -> None:
    with serving() as server:
        env = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.address, "WANDB_MODE": "", "HOME": str(tmp_path)}
        words = ("--run.loggers", "wandb", "--run.progress", "off", "--run.capture-video", 2)
        first = run_cli("train", *SHORT, *words, "--total-steps", 1024, env=env)
        assert (first.rc, [line for line in first.stderr.splitlines() if "press Ctrl-C" not in line]) == (0, [])
        ((identity, run),) = server.runs.items()
        assert (run["displayName"], run["project"]) == ("first", "lockstep")
        assert json.loads(run["config"])["ppo"]["value"]["minibatches"] == 2
        assert server.finished == [identity]
        second = run_cli("resume", "first", "--total-steps", 2048, env=env)
        assert (second.rc, [line for line in second.stderr.splitlines() if "press Ctrl-C" not in line]) == (0, [])
    assert list(server.history) == list(server.runs) == [identity]
    points = [json.loads(line) for line in server.history[identity]]
    rows = [json.loads(line) for line in (tmp_path / "runs/first/metrics.jsonl").read_text().splitlines()]
    curve = {point["_step"]: point["train/loss"] for point in points if "train/loss" in point}
    assert curve == {row["env_steps"]: row["loss"] for row in rows}
    steps = {point["videos/env_steps"] for point in points if "videos/env_steps" in point}
    assert steps == {row["env_steps"] for row in rows if row["iteration"] % 2 == 0}
    videos = [name for name in server.files if name.endswith(".mp4")]
    assert len(videos) == 8
    assert all(server.files[name][4:8] == b"ftyp" for name in videos)
    contents = b"".join(path.read_bytes() for path in tmp_path.joinpath("runs").rglob("*") if path.is_file())
    assert KEY.encode() not in contents


def test_missing_package_is_reported_before_training_starts(run_cli, tmp_path: Path) -> None:
    script = (
        "import importlib.util, sys; from lockstep.cli.main import main\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name in ('wandb', 'imageio_ffmpeg') else find(name, *rest)\n"
        "sys.exit(main(sys.argv[2:]))"
    )
    for words, message in (
        (
            ("--run.loggers", "wandb"),
            "lockstep: run.loggers contains 'wandb': it is not installed; pip install 'lockstep-rl[track]'",
        ),
        (("--run.capture-video", 2), "pip install 'lockstep-rl[video]'"),
    ):
        done = run_cli("train", *SHORT, *words, prefix=(sys.executable, "-c", script))
        assert (done.rc, done.stdout, len(done.stderr.splitlines())) == (2, "", 1), done
        assert message in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.extra("trackio", "imageio_ffmpeg")
def test_videos_of_the_first_and_the_last_environment_do_not_change_digests(run_cli, tmp_path: Path) -> None:
    import imageio_ffmpeg

    words = ("--total-steps", 1024, "--run.progress", "off", "--run.capture-video", 2)
    done = run_cli("train", *SHORT, *words, "--run.loggers", "tensorboard", "trackio")
    assert done.rc == 0, done
    assert [line for line in done.stderr.splitlines() if "press Ctrl-C" not in line] == []
    assert run_cli("train", *SHORT[:-1], "plain", *words[:-2], "--run.loggers").rc == 0
    assert digests(tmp_path / "runs" / "first") == digests(tmp_path / "runs" / "plain")
    videos = tmp_path / "runs" / "first" / "videos"
    names = [f"iteration-0000000{iteration}-{place}.mp4" for iteration in (2, 4) for place in ("first", "last")]
    assert sorted(path.name for path in videos.iterdir()) == names
    assert all(imageio_ffmpeg.count_frames_and_secs(str(videos / name))[0] > 5 for name in names)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    shown = EventAccumulator(str(videos.parent / "tb" / "videos")).Reload()
    assert [len(shown.Images(place)) for place in ("first", "last")] == [2, 2]
    assert len(list((videos.parent / "trackio" / "media").rglob("*.mp4"))) == 4


@pytest.mark.slow
@pytest.mark.extra("trackio", "imageio_ffmpeg")
def test_no_sidecar_process_outlives_rank_0(begin, tmp_path: Path) -> None:
    words = ("--total-steps", 10**7, "--run.progress", "off", "--run.capture-video", 2, "--run.loggers", "trackio")
    words += ("--runtime.compile", "off", "--ranks", 2, "--plan.shards", 2)
    process = begin("train", *SHORT, *words, "--out", tmp_path / "runs")
    run = tmp_path / "runs" / "first"
    wait_for(lambda: len(sidecars(run)) == 2 and len(digests(run)) > 3, "two sidecars")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    wait_for(lambda: not sidecars(run), "no sidecar")


@pytest.mark.slow
@pytest.mark.extra("wandb")
def test_training_completes_if_the_server_is_unreachable(run_cli, tmp_path: Path) -> None:
    env = {"WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_MODE": "online"}
    words = ("--total-steps", 1024, "--run.progress", "off", "--run.loggers", "wandb")
    done = run_cli("train", *SHORT, *words, env=env)
    assert done.rc == 0, done
    assert len(digests(tmp_path / "runs" / "first")) == 4
    assert ": recording offline" in done.stderr
    assert "0" * 40 not in done.stderr + "".join(path.read_text(errors="replace") for path in tmp_path.rglob("*.log"))


def test_failed_tracker_is_reported_in_one_line(run_cli, tmp_path: Path) -> None:
    (tmp_path / "trackio.py").write_text("raise RuntimeError('broken')")  # the first that Python finds
    env = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    words = ("--total-steps", 1024, "--run.progress", "off", "--run.loggers", "trackio")
    done = run_cli("train", *SHORT, *words)
    assert done.rc == 0, (done, env)
    (line,) = (line for line in done.stderr.splitlines() if "press Ctrl-C" not in line)
    assert line.startswith(f"lockstep: trackio: RuntimeError: broken (details: {tmp_path}/runs/first/logs/trackio.log)")

"""Readers of configs, checkpoints, metrics and agents raise typed errors only, whatever bytes they get.

A few examples run by default; `--hypothesis-profile` and `--hypothesis-seed` choose others, and LOCKSTEP_FUZZ multiplies their number.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import lockstep
from lockstep.config import Config
from lockstep.config.decode import decode, encode
from lockstep.config.files import read
from lockstep.experiment.execute import open_run
from lockstep.experiment.policy import load_policy
from lockstep.run.checkpoint import Checkpoint, SavedCounters
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import encode_state
from lockstep.run.rows import parse_row
from lockstep.telemetry.attempts import read_starts
from lockstep.telemetry.status import RunStatus
from lockstep.telemetry.tail import MetricsTail

FACTOR = int(os.environ.get("LOCKSTEP_FUZZ", "1"))
FIXTURES = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
few = settings(max_examples=25 * FACTOR, suppress_health_check=FIXTURES, deadline=None)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
)
SECTIONS = encode(Config())
fields = st.sampled_from([(section, name) for section, content in SECTIONS.items() for name in content])
edits = st.lists(st.tuples(st.integers(0, 10**6), st.integers(-1, 255)), min_size=1, max_size=4)


def damaged(content: bytes, places: list[tuple[int, int]]) -> bytes:
    """Set bytes of `content`, or cut it off where the value is -1."""
    changed = bytearray(content)
    for place, value in places:
        if changed and value >= 0:
            changed[place % len(changed)] = value
        elif changed:
            del changed[place % len(changed) :]
    return bytes(changed)


@pytest.fixture(name="trained", scope="module")
def fixture_trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of one iteration."""
    path = tmp_path_factory.mktemp("trained")
    chosen = {"env.count": 4, "rollout.steps": 16, "policy.hidden": [4], "ppo.minibatches": 2, "runtime.compile": "off"}
    quiet = {"run.progress": "off", "run.folder": str(path), "run.name": "run", "run.loggers": ()}
    lockstep.train(env="CartPole-v1", total_steps=64, **chosen, **quiet)
    return path / "run"


def one_line(read: Callable[[], object]) -> None:
    """Call a reader, which may raise ValueError with one line."""
    message = ""
    try:
        read()
    except ValueError as error:
        message = str(error)
    assert "\n" not in message


@few
@given(st.dictionaries(fields, values, max_size=3))
def test_config_is_decoded_or_refused(changes: dict[tuple[str, str], object]) -> None:
    tree = {
        section: {name: value for (place, name), value in changes.items() if place == section} for section, _ in changes
    }
    one_line(lambda: decode(tree, Config()))


@few
@given(suffix=st.sampled_from([".yaml", ".json", ".gin"]), text=st.text() | st.binary(), places=edits)
def test_config_file_is_read_or_refused(
    suffix: str, text: str | bytes, places: list[tuple[int, int]], tmp_path: Path
) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    one_line(lambda: decode(read(path).tree, Config()))
    path.write_bytes(damaged(json.dumps(SECTIONS).encode(), places))
    one_line(lambda: decode(read(path).tree, Config()))


@few
@given(
    st.dictionaries(st.sampled_from(["iteration", "env_steps", "seconds", "return_mean_20", "idle", "digest"]), values)
)
def test_metrics_are_read_or_skipped(row: dict[str, object]) -> None:
    parsed = parse_row(json.dumps(row).encode())
    if parsed is not None:
        status = RunStatus()
        status.append(parsed)
        status.update()


@few
@given(places=edits)
def test_run_folder_is_read_or_refused(places: list[tuple[int, int]], trained: Path, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    for name in ("metrics.jsonl", "starts.jsonl", "config.json", "environment.json"):
        shutil.rmtree(folder.path, ignore_errors=True)
        shutil.copytree(trained, folder.path)
        (folder.path / name).write_bytes(damaged((trained / name).read_bytes() * 2, places))
        for reader in (folder.metrics, folder.environment, folder.last_metrics, folder.readable_metrics):
            one_line(reader)
        one_line(lambda: open_run(folder.path))
        read_starts(folder)
        MetricsTail(folder.path / name).read()
        folder.truncate_metrics(0)


@few
@given(
    places=edits,
    counters=st.dictionaries(st.sampled_from(["iteration", "env_steps", "seconds", "last_returns"]), values),
)
def test_checkpoint_is_read_or_refused(
    places: list[tuple[int, int]], counters: dict[str, object], trained: Path, tmp_path: Path
) -> None:
    path = RunFolder(tmp_path / "run").checkpoint(1)
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.copytree(trained, tmp_path / "run")
    original = json.loads((path / "state.json").read_text())
    del original["sha256"]
    (path / "state.json").write_bytes(encode_state({**original, **counters}, original["files"]))
    one_line(lambda: SavedCounters.of(Checkpoint(path).state))
    (path / "state.json").write_bytes(damaged(encode_state(original, original["files"]), places))
    one_line(lambda: SavedCounters.of(Checkpoint(path).state))


@few
@given(places=edits)
def test_agent_is_loaded_or_refused(places: list[tuple[int, int]], trained: Path, tmp_path: Path) -> None:
    """An agent of the Hub is a folder with config, state and weights, all of them by one author."""
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    shutil.copytree(trained, tmp_path / "run")
    agent = RunFolder(tmp_path / "run").checkpoint(1) / "agent.safetensors"
    agent.write_bytes(damaged(agent.read_bytes(), places))
    state = json.loads((agent.parent / "state.json").read_text())
    del state["sha256"]
    (agent.parent / "state.json").write_bytes(
        encode_state(state, {agent.name: hashlib.sha256(agent.read_bytes()).hexdigest()})
    )
    one_line(lambda: load_policy(RunFolder(tmp_path / "run")))

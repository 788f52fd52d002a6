"""Download from the Hub: it gives the same policy or an error of one line, and never executes code."""

import hashlib
import json
import pickle
import socket
from pathlib import Path

import pytest
from tests.hub.fake_hub import FakeHub

import lockstep
from lockstep.cli.main import main
from lockstep.envs.env_factory import EnvFactory
from lockstep.hub.fetching import fetch, find_checkpoint
from lockstep.hub.files import published
from lockstep.hub.repository import Repository
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import encode_state

CHECKPOINT = "checkpoints/00000004"


@pytest.fixture
def model(hub: FakeHub, trained: Path) -> dict[str, bytes]:
    """Publish the run on the fake Hub. Return the files of the model."""
    hub.models["me/first"] = published(RunFolder(trained), 4)
    return hub.models["me/first"]


def changed(model: dict[str, bytes], section: str, **fields: object) -> None:
    config = json.loads(model["config.json"])
    config[section] |= fields
    model["config.json"] = json.dumps(config).encode()


def with_agent(model: dict[str, bytes], content: bytes) -> None:
    """Replace the weights and update their hash in the state: an attacker can change both."""
    state = json.loads(model[f"{CHECKPOINT}/state.json"])
    del state["sha256"]
    sealed = encode_state(state, {"agent.safetensors": hashlib.sha256(content).hexdigest()})
    model |= {f"{CHECKPOINT}/agent.safetensors": content, f"{CHECKPOINT}/state.json": sealed}


def test_the_policy_equals_that_of_the_run(hub: FakeHub, model: dict[str, bytes], trained: Path) -> None:
    model["README.md"] = model["replay.mp4"] = b"not needed to act"
    assert lockstep.load("hub:me/first").digest == lockstep.load(trained).digest
    assert lockstep.evaluate("hub:me/first", 3) == lockstep.evaluate(trained, 3)
    downloaded = {line.partition("/resolve/")[2].partition("/")[2] for line in hub.requests if "/resolve/" in line}
    assert downloaded == {"config.json", f"{CHECKPOINT}/agent.safetensors", f"{CHECKPOINT}/state.json"}


def test_the_download_is_a_run_folder_in_the_cache_of_the_client(model: dict[str, bytes], tmp_path: Path) -> None:
    folder = fetch(Repository.parse("hub:me/first@main"))
    assert folder.is_relative_to(tmp_path / "cache")
    assert RunFolder.open(folder).checkpoints() == [4]


def test_token_without_permission_to_read_is_reported(hub: FakeHub, model: dict[str, bytes]) -> None:
    hub.failing = {"/api/models/me/first": 403}
    with pytest.raises(ValueError, match="the token has no permission to read me/first; it needs the role `read`"):
        fetch(Repository.parse("hub:me/first"))


def test_checkpoint_is_selected_by_its_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_checkpoint(str(trained / "checkpoints/00000002"), None) == (trained, 2)
    assert lockstep.load(trained / "checkpoints/00000002").iteration == 2
    monkeypatch.chdir(trained.parent.parent)
    with pytest.raises(ValueError, match=r"iteration is 4: .* is the checkpoint of iteration 2"):
        find_checkpoint(str(trained / "checkpoints/00000002"), 4)
    with pytest.raises(ValueError, match="has checkpoints of 2, 4"):
        lockstep.load(trained / "checkpoints/00000003")


@pytest.mark.parametrize(
    ("run", "line"),
    [
        ("hub:me/none", "hub:me/none does not exist, or it is private"),
        ("hub:me/first@dev", "hub:me/first has no revision 'dev'"),
        ("hub:first", "run is 'hub:first': a model on the Hub is given as hub:USER/NAME or hub:USER/NAME@REVISION"),
        ("hub:me/first@", "a model on the Hub is given as hub:USER/NAME"),
        ("hub:me/../first", "is not a valid model name on the Hub"),
        ("hub:me/a b", "is not a valid model name on the Hub"),
    ],
)
def test_missing_model_is_reported(run: str, line: str, model: dict[str, bytes]) -> None:
    with pytest.raises(ValueError, match=line) as raised:
        lockstep.load(run)
    assert "\n" not in str(raised.value)


def test_private_model_without_a_token_is_reported(
    hub: FakeHub, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.private.add("me/first")
    assert lockstep.load("hub:me/first").iteration == 4
    monkeypatch.setenv("HF_TOKEN", "")
    with pytest.raises(ValueError, match="or it is private and the token does not give access"):
        lockstep.load("hub:me/first")


def test_missing_network_is_reported(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(ValueError, match=r"cannot connect to the Hub at http://127\.0\.0\.1"):
            lockstep.load("hub:me/first")


def test_downloaded_model_is_used_offline(
    hub: FakeHub, model: dict[str, bytes], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.chdir(tmp_path)
    with pytest.MonkeyPatch.context() as before:
        before.setattr(constants, "HF_HUB_OFFLINE", True)
        with pytest.raises(ValueError, match=r"^HF_HUB_OFFLINE is set: hub:me/first is not in the cache"):
            lockstep.load("hub:me/first")
    folder = fetch(Repository.parse("hub:me/first"))
    hub.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert lockstep.load("hub:me/first").digest == lockstep.load(trained).digest
    assert main(["eval", "hub:me/first", "--episodes", "1"]) == 0
    assert fetch(Repository.parse(f"hub:me/first@{folder.name}"), 4) == folder
    with pytest.raises(ValueError, match=r"has checkpoints of 4$"):
        fetch(Repository.parse("hub:me/first"), 3)
    with pytest.raises(ValueError, match=r"hub:me/first@other is not in the cache .*; .* must be main or a commit$"):
        fetch(Repository.parse("hub:me/first@other"))
    assert hub.requests == []


def test_unsupported_models_and_checkpoints_are_refused(hub: FakeHub, model: dict[str, bytes], tmp_path: Path) -> None:
    hub.models["me/other"] = {"config.json": b"{}", "model.safetensors": b""}
    with pytest.raises(ValueError, match="hub:me/other is not a lockstep model"):
        lockstep.load("hub:me/other")
    with pytest.raises(ValueError, match="iteration is 2: hub:me/first has checkpoints of 4"):
        lockstep.load("hub:me/first", iteration=2)
    del model[f"{CHECKPOINT}/agent.safetensors"]
    with pytest.raises(ValueError, match=r"checkpoints/00000004/agent\.safetensors is missing"):
        lockstep.load("hub:me/first")
    assert not (tmp_path / "cache").exists()


def test_sizes_are_checked_before_anything_is_downloaded(hub: FakeHub, model: dict[str, bytes]) -> None:
    hub.reported_sizes = {f"{CHECKPOINT}/agent.safetensors": 10**12}
    with pytest.raises(ValueError, match=r"agent\.safetensors has 1,000,000,000,000 bytes; the limit is 4,000,000,000"):
        lockstep.load("hub:me/first")
    assert not [line for line in hub.requests if "/resolve/" in line]


class Canary:
    """Object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (self.path,)


def test_pickle_under_an_expected_name_is_not_loaded(model: dict[str, bytes], tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    content = pickle.dumps(Canary(canary))
    original = dict(model)
    for name in (f"{CHECKPOINT}/agent.safetensors", f"{CHECKPOINT}/state.json", "config.json"):
        model |= original
        if name.endswith("agent.safetensors"):
            with_agent(model, content)
        else:
            model[name] = content
        with pytest.raises(ValueError, match=r"can't be read|is missing or broken"):
            lockstep.load("hub:me/first")
    assert not canary.exists()
    pickle.loads(content)
    assert canary.exists()


def test_files_with_other_names_are_not_downloaded(hub: FakeHub, model: dict[str, bytes], tmp_path: Path) -> None:
    for name in (
        "../../evil.py",
        "checkpoints/../../state.json",
        "checkpoints/00000009/../state.json",
        "sitecustomize.py",
    ):
        model[name] = b"raise SystemExit"
    assert lockstep.load("hub:me/first").iteration == 4
    assert not [line for line in hub.requests if ".." in line or line.endswith(".py")]
    assert not list(tmp_path.rglob("*.py"))


@pytest.mark.parametrize("env", [{"module": "evil"}, {"id": "evil:Evil-v0"}, {"id": "evil.make()"}, {"id": "evil"}])
def test_config_that_names_a_module_is_refused(
    env: dict[str, object], model: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "evil.py").write_text(f"from pathlib import Path\nPath({str(tmp_path / 'canary')!r}).touch()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    changed(model, "env", **env)
    with pytest.raises(ValueError, match=r"env\.(module|id) is|evil") as raised:
        lockstep.load("hub:me/first")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "canary").exists()


LARGE = 16_384


@pytest.mark.parametrize(
    ("section", "fields"),
    [
        ("policy", {"hidden": [LARGE] * 3_000}),
        ("policy", {"hidden": [LARGE] * 100_000}),
        ("policy", {"core": "lstm", "core_size": LARGE, "core_layers": LARGE}),
        ("curiosity", {"kind": "rnd", "hidden": [LARGE] * 3_000}),
        ("curiosity", {"kind": "re3", "hidden": [LARGE] * 3_000}),
        ("curiosity", {"kind": "icm", "hidden": [LARGE] * 3_000, "feature_size": LARGE}),
        ("curiosity", {"kind": "disagreement", "ensemble": LARGE, "feature_size": LARGE, "hidden": [LARGE]}),
        ("curiosity", {"kind": "ngu", "capacity": 1_000_000, "feature_size": LARGE}),
    ],
)
def test_config_of_too_large_networks_is_refused(
    section: str, fields: dict[str, object], model: dict[str, bytes]
) -> None:
    changed(model, section, **fields)
    with pytest.raises(
        ValueError, match=r"does not fit this run: tensor '|the config asks for networks|it must have at most 100"
    ) as raised:
        lockstep.load("hub:me/first")
    assert "\n" not in str(raised.value)


def test_config_of_too_large_networks_is_refused_at_the_command_line(
    model: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    changed(model, "curiosity", kind="disagreement", ensemble=LARGE, feature_size=LARGE, hidden=[LARGE])
    assert main(["eval", "hub:me/first", "--episodes", "1"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "does not fit this run: tensor 'curiosity" in error


@pytest.mark.parametrize("engine", ["gymnasium", "gymnasium-vector", "gymnasium-async"])
def test_config_with_many_environments_creates_one_environment(
    engine: str, model: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []
    vector = EnvFactory.make_vector
    monkeypatch.setattr(EnvFactory, "make_vector", lambda self, count: counts.append(count) or vector(self, 1))
    changed(model, "env", count=1_000_000, engine=engine, threads=4096)
    assert lockstep.load("hub:me/first").iteration == 4
    assert counts == ([1] if engine == "gymnasium-vector" else [])


def test_deeply_nested_config_is_refused(model: dict[str, bytes]) -> None:
    model["config.json"] = b"[" * 500_000
    with pytest.raises(ValueError, match=r"config\.json can't be read"):
        lockstep.load("hub:me/first")


@pytest.mark.parametrize(("name", "value"), [("version", "Infinity"), ("files", "{}"), ("iteration", "1e400")])
def test_state_with_wrong_types_is_refused(
    name: str, value: str, model: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    state = json.loads(model[f"{CHECKPOINT}/state.json"])
    content = ", ".join(f'"{key}": {value if key == name else json.dumps(part)}' for key, part in state.items())
    model[f"{CHECKPOINT}/state.json"] = f"{{{content}}}".encode()
    assert main(["eval", "hub:me/first", "--episodes", "1"]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert "state.json is missing or broken" in error or "state.json was changed" in error


def test_weights_that_do_not_match_config_or_hash_are_refused(model: dict[str, bytes]) -> None:
    original = dict(model)
    changed(model, "policy", hidden=[32, 32])
    with pytest.raises(ValueError, match="does not fit this run: tensor"):
        lockstep.load("hub:me/first")
    model |= original
    with_agent(model, (2**40).to_bytes(8, "little") + b"{}")  # a header with a claimed length of 2**40 bytes
    with pytest.raises(ValueError, match=r"agent\.safetensors can't be read"):
        lockstep.load("hub:me/first")
    model[f"{CHECKPOINT}/agent.safetensors"] += b"more"
    with pytest.raises(ValueError, match=r"agent\.safetensors is missing, truncated or changed"):
        lockstep.load("hub:me/first")


def test_state_that_lists_files_outside_the_model_is_refused(model: dict[str, bytes], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("mine")
    state = json.loads(model[f"{CHECKPOINT}/state.json"])
    state["files"][str(tmp_path / "secret")] = hashlib.sha256(b"mine").hexdigest()
    model[f"{CHECKPOINT}/state.json"] = json.dumps(state).encode()
    with pytest.raises(ValueError, match=r"state\.json is missing or broken"):
        lockstep.load("hub:me/first")

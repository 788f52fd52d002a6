"""Upload to the Hub, and requests that are refused before anything is uploaded."""

import json
from pathlib import Path

import pytest
from tests.hub.fake_hub import TOKEN, FakeHub

from lockstep.hub.files import CARD, published
from lockstep.hub.pushing import push, sign_in
from lockstep.hub.repository import Repository
from lockstep.run.folder import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
"""Warning of the client for large files."""
REPOSITORY = Repository("me", "first")
BARE = {CARD: b"---\ntags: []\n---\n", "config.json": b"{}"}


def files(trained: Path) -> dict[str, bytes | Path]:
    return {CARD: BARE[CARD], **published(RunFolder(trained), 4)}


def test_push_uploads_the_files_of_the_model(hub: FakeHub, trained: Path) -> None:
    address = push(sign_in(REPOSITORY), REPOSITORY, files(trained), public=False)
    assert address == f"{hub.address}/me/first"
    checkpoint = "checkpoints/00000004"
    named = {"README.md", "config.json", "environment.json", "metrics.jsonl"}
    assert set(hub.models["me/first"]) == {*named, f"{checkpoint}/agent.safetensors", f"{checkpoint}/state.json"}
    assert hub.private == {"me/first"}
    assert len(hub.stored) == 1
    assert (
        hub.models["me/first"][f"{checkpoint}/agent.safetensors"]
        == (trained / checkpoint / "agent.safetensors").read_bytes()
    )


def test_neither_the_machine_nor_the_token_is_revealed(hub: FakeHub, trained: Path) -> None:
    environment = json.loads((trained / "environment.json").read_text())
    push(sign_in(REPOSITORY), REPOSITORY, files(trained), public=True)
    everything = b"\n".join(hub.models["me/first"].values()).decode(errors="replace")
    assert TOKEN not in everything
    assert str(trained.parent) not in everything
    uploaded = json.loads(hub.models["me/first"]["environment.json"])
    assert environment.keys() - uploaded.keys() == {"command", "host"}
    assert hub.private == set()


def test_a_second_push_replaces_the_first_and_keeps_files_of_others(hub: FakeHub) -> None:
    api = sign_in(REPOSITORY)
    push(api, REPOSITORY, {**BARE, "replay.mp4": b"video", "checkpoints/00000002/state.json": b"{}"}, public=False)
    hub.models["me/first"]["notes.md"] = b"mine"
    push(api, REPOSITORY, {**BARE, "checkpoints/00000004/state.json": b"{}"}, public=False)
    assert set(hub.models["me/first"]) == {*BARE, "checkpoints/00000004/state.json", "notes.md"}


@pytest.mark.parametrize(
    ("public", "existing", "private", "line"),
    [
        (False, {}, False, "me/first is public: add --public to push there, or choose another --name"),
        (True, {}, True, "me/first is private: make it public in its settings on the Hub, or omit --public"),
        (
            False,
            {"model.bin": b""},
            True,
            "me/first contains something other than a lockstep run: choose another --name",
        ),
    ],
)
def test_repository_that_does_not_match_the_request_is_refused(
    public: bool, existing: dict[str, bytes], private: bool, line: str, hub: FakeHub
) -> None:
    hub.models["me/first"] = dict(existing)
    hub.private |= {"me/first"} if private else set()
    with pytest.raises(ValueError, match=line):
        push(sign_in(REPOSITORY), REPOSITORY, BARE, public)
    assert hub.models["me/first"] == existing


@pytest.mark.parametrize(
    ("failing", "line"),
    [
        (
            {"POST /api/models/me/first/commit": 403},
            "the token has no permission to write to me/first; it needs the role `write`",
        ),
        ({"POST /api/models/me/first/commit": 413}, "returned HTTP status 413 for me/first; nothing was changed"),
        ({"POST /api/repos/create": 429}, "returned HTTP status 429 for me/first; try again later"),
        ({"GET /api/models/me/first": 401}, "rejected the token; create one on"),
    ],
)
def test_errors_of_the_hub_are_reported_in_one_line(failing: dict[str, int], line: str, hub: FakeHub) -> None:
    api = sign_in(REPOSITORY)
    hub.failing = failing
    with pytest.raises(ValueError, match=line) as raised:
        push(api, REPOSITORY, BARE, public=False)
    assert TOKEN not in str(raised.value)
    assert not hub.models.get("me/first")


def test_failed_transfer_of_a_large_file_is_reported(hub: FakeHub, trained: Path) -> None:
    hub.failing = {"PUT /large": 403}
    with pytest.raises(ValueError, match="the token has no permission to write to me/first"):
        push(sign_in(REPOSITORY), REPOSITORY, files(trained), public=False)
    assert hub.models["me/first"] == {}


def test_another_user_name_is_refused(hub: FakeHub) -> None:
    other = Repository("you", "first")
    with pytest.raises(ValueError, match="you must be your user or organization"):
        push(sign_in(other), other, BARE, public=False)
    assert hub.models == {}


@pytest.mark.parametrize(
    ("token", "line"),
    [
        ("", "no token for the Hub: set HF_TOKEN or run `hf auth login`; --dry-run needs no token"),
        ("hf_" + "wrong" * 7, "rejected the token"),
        ("hf_wröng", "contains invalid characters"),
    ],
)
def test_missing_or_invalid_token_is_reported(
    token: str, line: str, hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ValueError, match=line) as raised:
        sign_in(REPOSITORY)
    assert not token or token not in str(raised.value)
    assert hub.changes() == []

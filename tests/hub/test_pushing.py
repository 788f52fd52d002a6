"""What goes to the Hub, and what is refused before anything does."""

import json
from pathlib import Path

import pytest
from tests.hub.stand_in import TOKEN, StandIn

from lockstep.hub.files import CARD, published
from lockstep.hub.pushing import push, sign_in
from lockstep.hub.repository import Repository
from lockstep.run.folder import RunFolder

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
"""Of the client, for large files."""
PLACE = Repository("me", "first")
BARE = {CARD: b"---\ntags: []\n---\n", "config.json": b"{}"}


def files(trained: Path) -> dict[str, bytes | Path]:
    return {CARD: BARE[CARD], **published(RunFolder(trained), 4)}


def test_the_files_are_exactly_these(hub: StandIn, trained: Path) -> None:
    address = push(sign_in(PLACE), PLACE, files(trained), public=False)
    assert address == f"{hub.address}/me/first"
    place = "checkpoints/00000004"
    named = {"README.md", "config.json", "environment.json", "metrics.jsonl"}
    assert set(hub.models["me/first"]) == {*named, f"{place}/agent.safetensors", f"{place}/state.json"}
    assert hub.private == {"me/first"}
    assert len(hub.stored) == 1
    assert hub.models["me/first"][f"{place}/agent.safetensors"] == (trained / place / "agent.safetensors").read_bytes()


def test_nothing_tells_of_the_machine_or_the_token(hub: StandIn, trained: Path) -> None:
    noted = json.loads((trained / "environment.json").read_text())
    push(sign_in(PLACE), PLACE, files(trained), public=True)
    everything = b"\n".join(hub.models["me/first"].values()).decode(errors="replace")
    assert TOKEN not in everything
    assert str(trained.parent) not in everything
    found = json.loads(hub.models["me/first"]["environment.json"])
    assert noted.keys() - found.keys() == {"command", "host"}
    assert hub.private == set()


def test_a_second_push_replaces_the_first_and_leaves_what_others_put_there(hub: StandIn) -> None:
    api = sign_in(PLACE)
    push(api, PLACE, {**BARE, "replay.mp4": b"film", "checkpoints/00000002/state.json": b"{}"}, public=False)
    hub.models["me/first"]["notes.md"] = b"mine"
    push(api, PLACE, {**BARE, "checkpoints/00000004/state.json": b"{}"}, public=False)
    assert set(hub.models["me/first"]) == {*BARE, "checkpoints/00000004/state.json", "notes.md"}


@pytest.mark.parametrize(
    ("public", "there", "private", "line"),
    [
        (False, {}, False, "me/first is public: give --public to push there, or another --name"),
        (True, {}, True, "me/first is private: make it public in its settings on the Hub, or leave --public out"),
        (
            False,
            {"model.bin": b""},
            True,
            "me/first holds something else than a run of lockstep: choose another --name",
        ),
    ],
)
def test_a_repository_that_is_another_than_was_asked_for(
    public: bool, there: dict[str, bytes], private: bool, line: str, hub: StandIn
) -> None:
    hub.models["me/first"] = dict(there)
    hub.private |= {"me/first"} if private else set()
    with pytest.raises(ValueError, match=line):
        push(sign_in(PLACE), PLACE, BARE, public)
    assert hub.models["me/first"] == there


@pytest.mark.parametrize(
    ("failing", "line"),
    [
        ({"POST /api/models/me/first/commit": 403}, "the token may not write to me/first; it needs the role `write`"),
        ({"POST /api/models/me/first/commit": 413}, "answered 413 for me/first; nothing was changed"),
        ({"POST /api/repos/create": 429}, "answered 429 for me/first; try again later"),
        ({"GET /api/models/me/first": 401}, "does not accept the token; make one on"),
    ],
)
def test_a_hub_that_refuses_is_told_in_one_line(failing: dict[str, int], line: str, hub: StandIn) -> None:
    api = sign_in(PLACE)
    hub.failing = failing
    with pytest.raises(ValueError, match=line) as told:
        push(api, PLACE, BARE, public=False)
    assert TOKEN not in str(told.value)
    assert not hub.models.get("me/first")


def test_a_large_file_that_does_not_get_through(hub: StandIn, trained: Path) -> None:
    hub.failing = {"PUT /large": 403}
    with pytest.raises(ValueError, match="the token may not write to me/first"):
        push(sign_in(PLACE), PLACE, files(trained), public=False)
    assert hub.models["me/first"] == {}


def test_another_users_name(hub: StandIn) -> None:
    other = Repository("you", "first")
    with pytest.raises(ValueError, match="you must be yours"):
        push(sign_in(other), other, BARE, public=False)
    assert hub.models == {}


@pytest.mark.parametrize(
    ("token", "line"),
    [
        ("", "there is no token for the Hub: set HF_TOKEN, or `hf auth login`; --dry-run needs none"),
        ("hf_" + "wrong" * 7, "does not accept the token"),
        ("hf_wröng", "characters that no token has"),
    ],
)
def test_no_token_or_a_wrong_one(token: str, line: str, hub: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    with pytest.raises(ValueError, match=line) as told:
        sign_in(PLACE)
    assert not token or token not in str(told.value)
    assert hub.changes() == []

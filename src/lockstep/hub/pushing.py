"""Files to a repository on the Hub, in one commit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.hub.files import CONFIG, is_ours
from lockstep.hub.repository import Repository, client, told

__all__ = ["push", "sign_in"]

_PATIENCE = 30.0
"""Seconds for an answer: the client itself would wait for ever."""


def sign_in(repository: Repository) -> Any:
    """The client, with the token of HF_TOKEN or of its own store, which the Hub has accepted.

    Raises ValueError, in one line, when there is none, or it is not accepted.
    """
    hub = client()
    if not hub.get_token():
        raise ValueError("there is no token for the Hub: set HF_TOKEN, or `hf auth login`; --dry-run needs none")
    hub.get_session().timeout = _PATIENCE
    api = hub.HfApi(library_name="lockstep")
    with told(repository):
        api.whoami()
    return api


def push(api: Any, repository: Repository, files: Mapping[str, bytes | Path], public: bool) -> str:
    """Makes the repository where there is none, private unless `public`, and puts the files there by a single commit, which also takes away
    what an earlier push left under other names.

    Args:
        api: What `sign_in` gave.
        repository: Where to.
        files: By the names they get.
        public: For whoever looks.

    Returns the address of the repository. Raises ValueError, in one line; then no file has changed.
    """
    hub = client()
    refused = next((name for name in files if not is_ours(name)), None)
    assert refused is None, refused
    with told(repository):
        url = api.create_repo(repository.id, private=not public, exist_ok=True)
        found = api.model_info(repository.id)
        there = {file.rfilename for file in found.siblings or ()}
        _check(repository, bool(found.private), public, there)
        operations = [hub.CommitOperationAdd(name, content) for name, content in files.items()]
        operations += [hub.CommitOperationDelete(name) for name in sorted(there - files.keys()) if is_ours(name)]
        api.create_commit(repository.id, operations, commit_message="lockstep push")
    return str(url)


def _check(repository: Repository, private: bool, public: bool, there: set[str]) -> None:
    """Raises ValueError for a repository that was there before and is another than what was asked for."""
    if public and private:
        raise ValueError(
            f"{repository.id} is private: make it public in its settings on the Hub, or leave --public out"
        )
    if not public and not private:
        raise ValueError(f"{repository.id} is public: give --public to push there, or another --name")
    if there - {".gitattributes"} and CONFIG not in there:
        raise ValueError(f"{repository.id} holds something else than a run of lockstep: choose another --name")

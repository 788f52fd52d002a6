"""Upload of files to a repository on the Hub, in one commit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.hub.files import CONFIG, is_ours
from lockstep.hub.repository import Repository, client, readable_errors

__all__ = ["push", "sign_in"]

_TIMEOUT = 30.0
"""Seconds to wait for a response. The client itself has no limit."""


def sign_in(repository: Repository) -> Any:
    """Return an API client whose token the Hub accepted, from HF_TOKEN or the client's token store. Raises ValueError if there is none."""
    hub = client()
    if not hub.get_token():
        raise ValueError("no token for the Hub: set HF_TOKEN or run `hf auth login`; --dry-run needs no token")
    hub.get_session().timeout = _TIMEOUT
    api = hub.HfApi(library_name="lockstep")
    with readable_errors(repository):
        api.whoami()
    return api


def push(api: Any, repository: Repository, files: Mapping[str, bytes | Path], public: bool) -> str:
    """Upload files in one commit, which also deletes files of earlier pushes that are not among them. Create the repository if needed.

    `files` are contents or paths by their names in the repository. An existing repository must have the visibility `public`. Returns the
    URL of the repository. Raises ValueError if the upload fails; no file has changed then.
    """
    hub = client()
    foreign = next((name for name in files if not is_ours(name)), None)
    assert foreign is None, foreign
    with readable_errors(repository):
        url = api.create_repo(repository.id, private=not public, exist_ok=True)
        info = api.model_info(repository.id)
        existing = {file.rfilename for file in info.siblings or ()}
        _check(repository, bool(info.private), public, existing)
        operations = [hub.CommitOperationAdd(name, content) for name, content in files.items()]
        operations += [hub.CommitOperationDelete(name) for name in sorted(existing - files.keys()) if is_ours(name)]
        api.create_commit(repository.id, operations, commit_message="lockstep push")
    return str(url)


def _check(repository: Repository, private: bool, public: bool, existing: set[str]) -> None:
    """Raise ValueError if the repository has another visibility than requested, or contains something other than a lockstep run."""
    if public and private:
        raise ValueError(f"{repository.id} is private: make it public in its settings on the Hub, or omit --public")
    if not public and not private:
        raise ValueError(f"{repository.id} is public: add --public to push there, or choose another --name")
    if existing - {".gitattributes"} and CONFIG not in existing:
        raise ValueError(f"{repository.id} contains something other than a lockstep run: choose another --name")

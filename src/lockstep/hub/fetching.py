"""Download of a policy from the Hub: config, state and weights, into the cache of the Hub client. Downloaded files are never executed."""

import re
from pathlib import Path
from types import ModuleType

from lockstep.hub.files import AGENT, CONFIG, STATE
from lockstep.hub.repository import PREFIX, Repository, client, readable_errors
from lockstep.run.evaluations import Choice
from lockstep.run.locate import locate_checkpoint

__all__ = ["fetch", "find_checkpoint"]

_LARGEST = {AGENT: 4_000_000_000, CONFIG: 1_000_000, STATE: 1_000_000}
"""Largest sizes of the files in bytes. The weights of a large network with images have some ten million bytes. `restore_agent` checks that
the config fits the weights."""
_TIMEOUT = 10.0
"""Seconds to wait for a response."""


def find_checkpoint(run: str, iteration: Choice) -> tuple[Path, Choice]:
    """Return the run folder and the chosen checkpoint for a run as given by the user.

    `run` is `hub:USER/NAME`, the folder of a checkpoint, or a run. Raises ValueError if the run or the checkpoint does not exist.
    """
    if run.startswith(PREFIX):
        if iteration == "best":
            raise ValueError(
                f"{run} has no evaluations from which the best checkpoint could be chosen: load the newest"
            )
        return fetch(Repository.parse(run), iteration), iteration
    path, checkpoint = locate_checkpoint(run)
    if checkpoint is not None and iteration not in (None, checkpoint):
        raise ValueError(
            f"iteration is {iteration}: {run} is the checkpoint of iteration {checkpoint}; give only one of the two"
        )
    return path, iteration if checkpoint is None else checkpoint


def fetch(repository: Repository, iteration: int | None = None) -> Path:
    """Download config and agent of a checkpoint into the cache of the Hub client. Files in the cache are not downloaded again.

    `iteration` None means the newest checkpoint. Return a folder with the layout of a run folder. Raises ValueError if the model does not
    exist, is private, was not made by lockstep or is too large, or if the Hub cannot be reached. The message is one line.

    In the client's offline mode, the newest downloaded version is returned.
    """
    hub = client()
    if hub.constants.HF_HUB_OFFLINE:
        folder = _newest_download(hub, repository)
        files = (path for path in folder.rglob("*") if path.is_file())
        _files_to_download(
            repository, {str(path.relative_to(folder)): path.stat().st_size for path in files}, iteration
        )
        return folder
    api = hub.HfApi()
    with readable_errors(repository):
        info = api.model_info(repository.id, revision=repository.revision, files_metadata=True, timeout=_TIMEOUT)
        sizes = {file.rfilename: file.size for file in info.siblings or ()}
        names = _files_to_download(repository, sizes, iteration)
        # files of this commit, even if another one is pushed during the download
        paths = [Path(api.hf_hub_download(repository.id, name, revision=info.sha)) for name in names]
    return paths[0].parent


def _newest_download(hub: ModuleType, repository: Repository) -> Path:
    """Return the folder in the client's cache with the version of the model that was downloaded last. Raises ValueError if there is none."""
    try:
        models = [repo for repo in hub.scan_cache_dir().repos if repo.repo_type == "model"]
    except hub.errors.CacheNotFound:
        models = []
    versions = [version for repo in models if repo.repo_id == repository.id for version in repo.revisions]
    wanted = [version for version in versions if repository.revision in (None, "main", version.commit_hash)]
    if not wanted:
        raise ValueError(
            f"HF_HUB_OFFLINE is set: {PREFIX}{repository.id}{f'@{repository.revision}' if repository.revision else ''} is not in the cache of the "
            "Hub client; a model must be downloaded first, and a revision must be main or a commit"
        )
    path: Path = max(wanted, key=lambda version: version.last_modified).snapshot_path
    return path


def _files_to_download(repository: Repository, sizes: dict[str, int | None], iteration: int | None) -> list[str]:
    """Return the names of the files to download, the config first. The names are built here; none is copied from the Hub's listing."""
    where = f"{PREFIX}{repository.id}"
    states = (re.fullmatch(rf"checkpoints/(\d{{8}})/{STATE}", name) for name in sizes)
    checkpoints = sorted(int(match[1]) for match in states if match)
    if not checkpoints or CONFIG not in sizes:
        raise ValueError(f"{where} is not a lockstep model: {CONFIG} or the checkpoint is missing")
    if iteration is not None and iteration not in checkpoints:
        raise ValueError(f"iteration is {iteration}: {where} has checkpoints of {', '.join(map(str, checkpoints))}")
    folder = f"checkpoints/{checkpoints[-1] if iteration is None else iteration:08d}"
    names = {CONFIG: CONFIG, f"{folder}/{STATE}": STATE, f"{folder}/{AGENT}": AGENT}
    for name, kind in names.items():
        size = sizes.get(name)
        if size is None:
            raise ValueError(f"{where} is not a lockstep model: {name} is missing")
        if size > _LARGEST[kind]:
            raise ValueError(f"{where}: {name} has {size:,} bytes; the limit is {_LARGEST[kind]:,}")
    return list(names)

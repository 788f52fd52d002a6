"""Object storage at the start of a run: checks, download of a run that is only there, and upload of what is missing."""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from lockstep.run.folder import RunFolder
from lockstep.run.manifest import STATE
from lockstep.run.settings import RunConfig
from lockstep.store.fetch import fetch, is_stored
from lockstep.store.mirror import Mirror, delete_after, take_over
from lockstep.store.remote import RemoteRun, StoreFailed

__all__ = ["check_store_of_run", "check_stored", "fetch_if_missing", "remove_stored_after", "store_rest"]


def fetch_if_missing(config: RunConfig, resume: bool) -> None:
    """Download the run that `run.name` names if it is in the storage and not in `run.folder`, before it is opened or created.

    The run is then owned by this process: one on another machine that still trains it stops uploading. Raises RunInUse if a process of this
    machine downloads or trains the run, and ValueError, in one line, if the storage can't be used, or has a run of this name although `resume`
    is False.
    """
    if config.store is None:
        return
    if not config.name:
        raise ValueError("run.store needs --name, the name of the run in the storage")
    remote, path = RemoteRun(config.store, config.name), Path(config.folder) / config.name
    if (path / "config.json").is_file():
        return
    with _one_line():
        stored = is_stored(remote)
    if stored and not resume:
        raise ValueError(
            f"run.store: {remote.address} is a run already; continue it with --resume, or choose another --name"
        )
    if not stored:
        with _one_line():
            take_over(remote)
        return
    with _one_line():
        path.mkdir(parents=True, exist_ok=True)
    with RunFolder(path).locked():
        if (path / "config.json").is_file():  # another process has downloaded it meanwhile
            return
        with _one_line():
            take_over(remote)
        fetch(remote, path)
        print(f"downloaded {remote.address} to {path}", file=sys.stderr, flush=True)


def check_store_of_run(config: RunConfig, flags: Mapping[str, object]) -> None:
    """Check that a run that is copied to object storage is resumed with its address, or without on purpose. `flags` are those of the section `run`.

    Raises ValueError if only the config of the run names an address: the folder may come from an untrusted source.
    """
    if config.store is not None and "store" not in flags:
        raise ValueError(
            f"run.store is {config.store!r} in this run: a run folder can't choose where results are sent; set run.store to this address "
            "again if it is yours, or to none"
        )


def check_stored(folder: RunFolder, config: RunConfig) -> None:
    """Check that the storage can be used, and has no later checkpoint of the run than the folder. Raises ValueError, in one line.

    The run is then owned by this process: another one that still trains it stops uploading.
    """
    if config.store is None:
        return
    remote = RemoteRun(config.store, folder.path.name)
    with _one_line():
        names = remote.sizes()
    states = [
        Path(name).parent.name for name in names if name.startswith("checkpoints/") and name.endswith(f"/{STATE}")
    ]
    stored = max((int(number) for number in states if number.isdecimal()), default=0)
    newest = max(folder.checkpoints(), default=0)
    if stored > newest:
        raise ValueError(
            f"run.store: {remote.address} has the checkpoint of iteration {stored}, and {folder} only that of {newest}: rename "
            f"{folder} to continue from the storage, or set another run.store"
        )
    with _one_line():
        take_over(remote)


def remove_stored_after(folder: RunFolder, config: RunConfig, iteration: int) -> None:
    """Remove later checkpoints from the storage, as training removes them from the folder. Raises ValueError, in one line, if that fails.

    Otherwise the storage would have later checkpoints than the folder until the run has written one, and `check_stored` would refuse the run.
    """
    if config.store is None:
        return
    with _one_line():
        delete_after(RemoteRun(config.store, folder.path.name), iteration)


def store_rest(folder: RunFolder, config: RunConfig) -> None:
    """Copy to the storage what is missing there of a run that is complete. Raises ValueError, in one line, if that fails."""
    if config.store is None:
        return
    mirror = Mirror(folder, RemoteRun(config.store, folder.path.name))
    with _one_line():
        mirror.claim()
        mirror.update()


@contextmanager
def _one_line() -> Iterator[None]:
    try:
        yield
    except (StoreFailed, OSError) as error:
        raise ValueError(f"run.store: {error}") from None

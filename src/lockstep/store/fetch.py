"""Download of a run from object storage."""

import re
import secrets
import shutil
from pathlib import Path

from lockstep.run.manifest import STATE
from lockstep.store.remote import RemoteRun, StoreFailed, is_address

__all__ = ["fetch", "fetch_named", "is_stored"]

_CHECKPOINT = re.compile(r"checkpoints/(\d{8})/[\w.-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


def is_stored(remote: RemoteRun) -> bool:
    """Return True if the storage has the run. Raises StoreFailed."""
    return "config.json" in remote.sizes()


def fetch(remote: RemoteRun, path: Path) -> None:
    """Download a run to the folder `path`, which has a config.json when it is complete. Checkpoints without a state.json are left out.

    Nothing of what is downloaded is executed; `resume` compares checkpoints with their hashes. `path` may exist, without a run in it.
    Raises ValueError, in one line, if the storage has no such run, or if the storage or `path` can't be used.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        sizes = remote.sizes()
        if "config.json" not in sizes:
            raise ValueError(f"{remote.address} is not a run: it holds no config.json")
        for name in _files_to_download(sizes):
            remote.download(name, temporary / name, sizes[name])
        path.mkdir(parents=True, exist_ok=True)
        for entry in sorted(temporary.iterdir(), key=lambda entry: entry.name == "config.json"):
            _remove(path / entry.name)  # what a killed download has left: without config.json it is no run
            entry.rename(path / entry.name)
    except StoreFailed as error:
        raise ValueError(str(error)) from None
    except OSError as error:
        raise ValueError(f"{path} can't be written ({error.strerror})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def fetch_named(address: str, root: Path) -> Path:
    """Download the run at `address`, such as s3://BUCKET/FOLDER/NAME, to the new folder `root`/NAME, and return its path. Raises ValueError as `fetch` does."""
    store, _, name = address.rstrip("/").rpartition("/")
    if not is_address(store) or not _NAME.fullmatch(name):
        raise ValueError(f"{address} is not the address of a run: use one such as s3://BUCKET/FOLDER/NAME")
    path = root / name
    if path.exists():
        raise ValueError(f"{path} exists already: use it, or rename it to download {address} again")
    fetch(RemoteRun(store, name), path)
    return path


def _files_to_download(sizes: dict[str, int]) -> list[str]:
    whole = {match[1] for name in sizes if name.endswith(f"/{STATE}") and (match := _CHECKPOINT.fullmatch(name))}
    return [
        name
        for name in sorted(sizes)
        if not name.startswith("checkpoints/")
        or ((match := _CHECKPOINT.fullmatch(name)) is not None and match[1] in whole)
    ]

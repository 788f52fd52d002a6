"""A run in object storage: its files under one prefix, read and written through fsspec.

Writes are atomic: storage like S3 shows an object only when its upload is complete.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from lockstep.files import WEIGHTS_LIMIT

__all__ = ["RemoteRun", "StoreFailed", "check_address", "is_address"]

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_FILE = re.compile(r"\w[\w.-]*(/\w[\w.-]*){0,2}", re.ASCII)
"""Names of objects of a run, which can't refer to a file outside of its folder."""
_EXTRAS = {"s3": "s3"}
"""Extras with the packages of a protocol."""
_OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"config_kwargs": {"connect_timeout": 10, "read_timeout": 60, "retries": {"max_attempts": 3}}},
}
"""Arguments of the file system of a protocol. Its defaults wait for minutes for a server that does not answer."""
_MESSAGE = 200
"""Largest number of characters of an error of the client in a message."""


class StoreFailed(RuntimeError):
    """The object storage can't be used. The message is one line."""


_CONTAINER_AT_ACCOUNT = ("abfs", "abfss", "wasb", "wasbs")
"""Protocols of Azure, whose addresses have the form abfs://CONTAINER@ACCOUNT/PATH."""


def is_address(text: str) -> bool:
    """Return True for text of the form PROTOCOL://PATH."""
    return _ADDRESS.fullmatch(text) is not None


def check_address(address: str) -> None:
    """Raise ValueError, in one line, if `run.store` is no address, contains a password, or needs a package that is not installed."""
    if not is_address(address):
        raise ValueError(
            f"run.store is {address!r}: it must be the address of a folder in object storage, such as s3://BUCKET/FOLDER"
        )
    if "@" in urlsplit(address).netloc and urlsplit(address).scheme.lower() not in _CONTAINER_AT_ACCOUNT:
        raise ValueError(
            "run.store has a user name or a password in it: set credentials as the storage's client expects them, such as AWS_ACCESS_KEY_ID"
        )
    _file_system_class(address)


def _file_system_class(address: str) -> Any:
    protocol = urlsplit(address).scheme.lower()
    try:
        from fsspec.registry import get_filesystem_class

        return get_filesystem_class(protocol)
    except ValueError:
        raise ValueError(
            f"run.store is {address!r}: there is no protocol {protocol}; use s3://BUCKET/FOLDER, or another one of fsspec"
        ) from None
    except ImportError as error:
        extra = _EXTRAS.get(protocol)
        install = f"pip install 'lockstep-rl[{extra}]'" if extra else str(error).partition("\n")[0]
        raise ValueError(f"run.store is {address!r}: its client is not installed; {install}") from None


class RemoteRun:
    """The objects of one run, by their names inside of the run folder.

    All methods raise StoreFailed if the storage can't be reached, refuses access or does not have the object.
    """

    def __init__(self, address: str, name: str) -> None:
        """Connect to the run `name` in the folder `address`. Raises ValueError as `check_address` does."""
        check_address(address)
        self.address = f"{address.rstrip('/')}/{name}"
        protocol = urlsplit(address).scheme.lower()
        with self._reporting():
            # no listings from a cache: other processes write, too
            options = {**_OPTIONS.get(protocol, {}), "use_listings_cache": False, "skip_instance_cache": True}
            system = _file_system_class(address)
            self._files: Any = system(**options)
            self._root = str(system._strip_protocol(self.address))

    @contextmanager
    def _reporting(self) -> Iterator[None]:
        try:
            yield
        except (StoreFailed, KeyboardInterrupt):
            raise
        except Exception as error:  # each client has exceptions of its own
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise StoreFailed(f"{self.address}: {text[:_MESSAGE]}") from None

    def sizes(self) -> dict[str, int]:
        """Return the sizes in bytes of all objects of the run whose names a run can have; empty if there is no such run."""
        with self._reporting():
            self._files.invalidate_cache()
            found = self._files.find(self._root, detail=True) if self._files.exists(self._root) else {}
        names = {str(PurePosixPath(path).relative_to(self._root)): entry for path, entry in found.items()}
        return {name: int(entry["size"]) for name, entry in names.items() if _FILE.fullmatch(name)}

    def upload(self, path: Path, name: str) -> None:
        """Upload a file. Raises FileNotFoundError if the file is gone."""
        try:
            with self._reporting():
                self._make_folder(name)
                self._files.put_file(str(path), self._path(name))
        except StoreFailed:
            if not path.exists():  # the error of a missing file is not one of the storage
                raise FileNotFoundError(path) from None
            raise

    def write(self, name: str, content: bytes) -> None:
        """Write an object."""
        with self._reporting():
            self._make_folder(name)
            self._files.pipe_file(self._path(name), content)

    def _make_folder(self, name: str) -> None:
        if urlsplit(self.address).scheme in ("file", "local"):  # object storage has no folders
            self._files.makedirs(str(PurePosixPath(self._path(name)).parent), exist_ok=True)

    def read(self, name: str, limit: int) -> bytes:
        """Return the content of an object. Raises StoreFailed if it has more than `limit` bytes."""
        with self._reporting():
            content = self._files.cat_file(self._path(name), end=limit + 1)
        if len(content) > limit:
            raise StoreFailed(f"{self.address}/{name} has more than {limit:,} bytes")
        return bytes(content)

    def download(self, name: str, path: Path, size: int) -> None:
        """Download an object of `size` bytes, as `sizes` returned it, to a new file. Raises StoreFailed if it is too large for a file of a run."""
        if size > WEIGHTS_LIMIT:
            raise StoreFailed(f"{self.address}/{name} has {size:,} bytes; the limit is {WEIGHTS_LIMIT:,}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._reporting():
            self._files.get_file(self._path(name), str(path))

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with self._reporting(), suppress(FileNotFoundError):
            self._files.rm_file(self._path(name))

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

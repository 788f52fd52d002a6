"""Address of the rendezvous of ranks that another launcher started, and the rendezvous through files.

This module does not import PyTorch. The files of the rendezvous `file:///shared/meet`, where files of an earlier run may remain:

    rank 1 …    meet.rank-1   a random key of this rank
    rank 0      meet.rank-0   a token, then the keys that it has read; rewritten whenever a key changes
    rank 1 …    meet.rank-1   its key, then the token of the meet.rank-0 that contains this key
    all ranks   meet.NAME     a new file, for torch.distributed; NAME is a hash of the token

Only their user can read these files, so the token is also the secret of the run. Files of an earlier run contain other keys or another
token, so no rank uses them.
"""

import glob
import hashlib
import os
import re
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from lockstep.processes.heartbeat import beat
from lockstep.runtime.rank_info import RankInfo, launcher_process

__all__ = ["INHERITED", "FileRendezvous", "choose_rendezvous", "first_host", "own_secret", "unique_folder"]

INHERITED = "fd://"
"""Prefix of the address that consists of the descriptor of an open file, which all ranks of lockstep's own launcher inherit."""
_POLL = 0.02
"""Seconds between two reads of the files."""
_PRIVATE = "lockstep-rendezvous-"
_SECRET = "LOCKSTEP_SECRET"
_LEAST_CHARACTERS = 16
"""Minimum length of a secret."""
_FIRST_PORT, _PORTS = 12_000, 20_000
"""Range of ports, below those that systems use for outgoing connections."""


def choose_rendezvous(rank_info: RankInfo, address: str | None, environ: Mapping[str, str] | None = None) -> RankInfo:
    """Return `rank_info` with the address of the rendezvous.

    It is the first of these that applies:

    - `address`, which is `runtime.rendezvous` of the config, unless it is None;
    - none, if there is only one rank;
    - MASTER_ADDR and MASTER_PORT of the environment;
    - a file in the temporary folder, if all ranks are on one host;
    - a port of the first host of the job step, under Slurm.

    The secret of the run is the variable LOCKSTEP_SECRET.
    Raises ValueError, in one line, if none applies, or if `address` or the secret can't be used.
    """
    variables = os.environ if environ is None else environ
    rank_info = replace(rank_info, secret=own_secret(variables))
    has_master = "MASTER_ADDR" in variables and "MASTER_PORT" in variables
    if address is not None:
        if address == "env://" and not has_master:
            raise ValueError("runtime.rendezvous is 'env://': the launcher must set MASTER_ADDR and MASTER_PORT")
        if address.startswith("file://") and not Path(address.removeprefix("file://")).parent.is_dir():
            raise ValueError(f"runtime.rendezvous is {address!r}: the file's folder does not exist")
        return replace(rank_info, rendezvous=address)
    if rank_info.size == 1:
        return rank_info
    if has_master:
        return replace(rank_info, rendezvous="env://")
    if rank_info.on_one_host:
        return replace(rank_info, rendezvous=f"file://{_private_folder(rank_info, variables)}/rendezvous")
    if rank_info.launcher == "srun" and (
        nodes := variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_JOB_NODELIST"))
    ):
        job, step = (int(re.sub(r"\D", "", variables.get(name, "")) or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        port = _FIRST_PORT + (31 * job + step) % _PORTS
        return replace(rank_info, rendezvous=f"tcp://{first_host(nodes)}:{port}")
    raise ValueError(
        f"runtime.rendezvous is None: the launcher gives no address for the {rank_info.size} ranks; set file:///PATH on a "
        "file system that all hosts share, or tcp://HOST:PORT with rank 0's host"
    )


def own_secret(variables: Mapping[str, str]) -> bytes | None:
    """Return the secret of the run, which a launcher or the user has set; None: there is none. Raises ValueError if it is short."""
    secret = variables.get(_SECRET)
    if secret is None:
        return None
    if len(secret) < _LEAST_CHARACTERS:
        raise ValueError(
            f"{_SECRET} has {len(secret)} characters: it must have at least {_LEAST_CHARACTERS}, such as the output of `openssl rand -hex 16`"
        )
    return secret.encode()


def first_host(nodes: str) -> str:
    """Return the first host of a list in Slurm's notation: `node[01-04,7],x1` -> `node01`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


class RendezvousResult(NamedTuple):
    """Result of a rendezvous through files, the same on all ranks."""

    file: Path
    """File for torch.distributed."""
    secret: bytes
    """Secret that only these ranks know."""


@dataclass(frozen=True)
class FileRendezvous:
    """One rank's part of a rendezvous through files."""

    path: Path
    """Prefix of the paths of the files."""
    rank: int
    size: int

    def wait(self, timeout: float) -> RendezvousResult:
        """Wait for all ranks and return what they have agreed on. `timeout` is in seconds.

        Raises TimeoutError(who, why) if not all ranks arrive in time, and OSError if the files can't be written.
        """
        deadline = time.monotonic() + timeout
        if self._private:
            _create_private(self.path.parent)
        token = self._lead(deadline) if self.rank == 0 else self._follow(deadline)
        return RendezvousResult(self._file(hashlib.sha256(token.encode()).hexdigest()[: len(token)]), token.encode())

    def remove(self) -> None:
        """Remove the files. Rank 0 calls it when all ranks have connected, and any rank after a failure."""
        for path in self.path.parent.glob(f"{glob.escape(self.path.name)}.*"):
            if re.fullmatch(r"rank-\d+(\.[0-9a-f]{8})?|[0-9a-f]{32}", path.name.removeprefix(f"{self.path.name}.")):
                path.unlink(missing_ok=True)
        if self._private:
            shutil.rmtree(self.path.parent, ignore_errors=True)

    @property
    def _private(self) -> bool:
        return self.path.parent.name.startswith(_PRIVATE)

    def _file(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{name}")

    def _lead(self, deadline: float) -> str:
        """Publish a token with the keys of the other ranks until all have confirmed it, and return it."""
        token, published = secrets.token_hex(16), None
        while True:
            contents = [self._read(rank) for rank in range(1, self.size)]
            if all(fields[1:] == [token] for fields in contents):
                return token
            keys = [fields[0] if fields else "-" for fields in contents]
            if keys != published:
                self._write(token, *keys)
                published = keys
            late = [rank for rank, fields in enumerate(contents, 1) if fields[1:] != [token]]
            self._pause(deadline, f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))}")

    def _follow(self, deadline: float) -> str:
        """Publish a key, wait until rank 0 has published it with a token, then confirm the token and return it."""
        key = secrets.token_hex(16)
        self._write(key)
        while True:
            fields = self._read(0)
            if len(fields) == self.size and fields[self.rank] == key:
                self._write(key, fields[0])
                return fields[0]
            self._pause(deadline, "rank 0")

    def _pause(self, deadline: float, who: str) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(who, f"timed out waiting at file://{self.path}")
        beat()
        time.sleep(_POLL)

    def _write(self, *fields: str) -> None:
        """Replace this rank's file atomically, so that no rank reads a part of it."""
        temporary = self._file(f"rank-{self.rank}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(" ".join(fields))
        temporary.replace(self._file(f"rank-{self.rank}"))

    def _read(self, rank: int) -> list[str]:
        with suppress(OSError):
            return self._file(f"rank-{rank}").read_text().split()
        return []


def unique_folder() -> Path:
    """Return the path of a private folder for the files of a rendezvous. The ranks create it when they need it."""
    return Path(tempfile.gettempdir()) / f"{_PRIVATE}{os.getuid()}-{secrets.token_hex(16)}"


def _private_folder(rank_info: RankInfo, variables: Mapping[str, str]) -> Path:
    """Return a folder whose name all ranks of this job derive from the same facts. `_create_private` creates it."""
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID")
    facts = [rank_info.launcher, str(rank_info.size), str(launcher_process(rank_info))]
    key = hashlib.sha256("\n".join(facts + [variables.get(name, "") for name in names]).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"{_PRIVATE}{os.getuid()}-{key}"


def _create_private(folder: Path) -> None:
    """Create a private folder, unless another rank has created it.

    Raises PermissionError if another user has created the folder or can access it.
    """
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} must be a folder that only this user can access")

"""Where ranks meet that somebody else started, and how they do it through files. Importing this does not import PyTorch.

Meeting through files (`file:///shared/meet`), for ranks that may find files of a former meeting at the same place:

    rank 1 …    meet.rank-1   a word of its own that nobody else has
    rank 0      meet.rank-0   a token, then the words that it found; written anew whenever one of them has changed
    rank 1 …    meet.rank-1   its word, then the token of the meet.rank-0 that has its word in it
    all         meet.TOKEN    torch.distributed's own file, which is new for certain

What is left of a former meeting has other words or another token, so nobody acts on it.
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

from lockstep.runtime.rank_info import RankInfo, launcher_process

__all__ = ["FileMeeting", "choose_rendezvous", "first_host"]

_POLL = 0.02
_PRIVATE = "lockstep-meeting-"
_FIRST_PORT, _PORTS = 12_000, 20_000
"""Below those that systems give to outgoing connections."""


def choose_rendezvous(place: RankInfo, rendezvous: str | None, environ: Mapping[str, str] | None = None) -> RankInfo:
    """`place` with the address at which its ranks meet.

    That is `rendezvous` (the config's) if there is one, else MASTER_ADDR and MASTER_PORT, else a file in the temporary folder if
    all ranks are on one host, else under Slurm a port of the job's first host. Raises ValueError, in one line, where none of these
    applies.
    """
    variables = os.environ if environ is None else environ
    has_master = "MASTER_ADDR" in variables and "MASTER_PORT" in variables
    if rendezvous is not None:
        if rendezvous == "env://" and not has_master:
            raise ValueError("runtime.rendezvous is 'env://': the launcher must set MASTER_ADDR and MASTER_PORT")
        if rendezvous.startswith("file://") and not Path(rendezvous.removeprefix("file://")).parent.is_dir():
            raise ValueError(f"runtime.rendezvous is {rendezvous!r}: the file's folder does not exist")
        return replace(place, meeting=rendezvous)
    if place.size == 1:
        return place
    if has_master:
        return replace(place, meeting="env://")
    if place.on_one_host:
        return replace(place, meeting=f"file://{_private_folder(place, variables)}/meeting")
    if place.launcher == "srun" and (
        nodes := variables.get("SLURM_STEP_NODELIST", variables.get("SLURM_JOB_NODELIST"))
    ):
        job, step = (int(re.sub(r"\D", "", variables.get(name, "")) or 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
        return replace(place, meeting=f"tcp://{first_host(nodes)}:{_FIRST_PORT + (31 * job + step) % _PORTS}")
    raise ValueError(
        f"runtime.rendezvous is needed: nothing says where the {place.size} ranks meet; give file:///PATH on a "
        "file system that all hosts share, or tcp://HOST:PORT with rank 0's host"
    )


def first_host(nodes: str) -> str:
    """The first host of Slurm's notation: `node[01-04,7],x1` -> `node01`."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])*", nodes)
    assert first is not None
    return re.sub(r"\[(\w+)[^\]]*\]", r"\1", first[0])


@dataclass(frozen=True)
class FileMeeting:
    """One rank's part in a meeting through files; `path` is the start of their names."""

    path: Path
    rank: int
    size: int

    def meet(self, timeout: float) -> Path:
        """Waits for all ranks, and returns a file that is theirs alone.

        Raises TimeoutError(who, why) when not all come, and OSError when the files can't be written.
        """
        deadline = time.monotonic() + timeout
        if self._private:
            _enter(self.path.parent)
        token = self._invite(deadline) if self.rank == 0 else self._follow(deadline)
        return self._file(token)

    def clear(self) -> None:
        """Removes what the meeting has left: rank 0's business, when all have come or something has gone wrong."""
        for left in self.path.parent.glob(f"{glob.escape(self.path.name)}.*"):
            if re.fullmatch(r"rank-\d+(\.[0-9a-f]{8})?|[0-9a-f]{32}", left.name.removeprefix(f"{self.path.name}.")):
                left.unlink(missing_ok=True)
        if self._private:
            shutil.rmtree(self.path.parent, ignore_errors=True)

    @property
    def _private(self) -> bool:
        return self.path.parent.name.startswith(_PRIVATE)

    def _file(self, name: str) -> Path:
        return self.path.with_name(f"{self.path.name}.{name}")

    def _invite(self, deadline: float) -> str:
        token, said = secrets.token_hex(16), None
        while True:
            found = [self._read(rank) for rank in range(1, self.size)]
            if all(words[1:] == [token] for words in found):
                return token
            words = [words[0] if words else "-" for words in found]
            if words != said:
                self._write(token, *words)
                said = words
            late = [rank for rank, words in enumerate(found, 1) if words[1:] != [token]]
            self._pause(deadline, f"rank{'s' * (len(late) > 1)} {', '.join(map(str, late))}")

    def _follow(self, deadline: float) -> str:
        own = secrets.token_hex(16)
        self._write(own)
        while True:
            words = self._read(0)
            if len(words) == self.size and words[self.rank] == own:
                self._write(own, words[0])
                return words[0]
            self._pause(deadline, "rank 0")

    def _pause(self, deadline: float, who: str) -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(who, f"nobody came to file://{self.path} in time")
        time.sleep(_POLL)

    def _write(self, *words: str) -> None:
        """Leaves no moment at which the file is there in part."""
        aside = self._file(f"rank-{self.rank}.{secrets.token_hex(4)}")
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(" ".join(words))
        aside.replace(self._file(f"rank-{self.rank}"))

    def _read(self, rank: int) -> list[str]:
        with suppress(OSError):
            return self._file(f"rank-{rank}").read_text().split()
        return []


def _private_folder(place: RankInfo, variables: Mapping[str, str]) -> Path:
    """A folder that the ranks of this job agree on without having met; `_enter` makes it."""
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID", "SLURM_STEP_ID")
    known = [place.launcher, str(place.size), str(launcher_process(place))]
    key = hashlib.sha256("\n".join(known + [variables.get(name, "") for name in names]).encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"{_PRIVATE}{os.getuid()}-{key}"


def _enter(folder: Path) -> None:
    """Makes a private folder, or finds it made by another rank. Raises PermissionError if another user got in first."""
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} belongs to somebody else")

"""A run that the user asks to train on a cluster, and its folder."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.clusters.job import Job
from lockstep.config import Config
from lockstep.config.flags import as_flags
from lockstep.experiment.execute import open_run, reserve_run
from lockstep.experiment.same_experiment import first_difference
from lockstep.files import make_folder
from lockstep.run.folder import JOB_FOLDER

__all__ = ["Request", "reserved"]


@dataclass(frozen=True)
class Request:
    """A run as the user asks for it."""

    preset: str | None
    fields: Mapping[str, Mapping[str, object]]
    """Fields of the config that the user has set besides those of the preset, by section."""
    resolved: Config
    """The resolved config, with the devices and the compiler of this host."""
    sizes: Sequence[int]
    """Numbers of ranks that fit the plan, largest first."""
    restarts: int
    """Number of restarts after faults within an hour."""
    options: Mapping[str, str]
    """Options of the cluster, from `--job`."""
    resume: bool
    """Accept a run that exists, and resume it."""

    def words(self, name: str, meeting: Path) -> list[str]:
        """Return the words after `lockstep` that every rank runs. They start the run `name`, or resume it, on any number of ranks.

        Ranks meet in files beside `meeting`, unless the user has set `runtime.rendezvous`: names of hosts need not resolve then.
        """
        fields = {section: dict(values) for section, values in self.fields.items()}
        fields.setdefault("run", {})["name"] = name
        fields.setdefault("plan", {}).setdefault("shards", self.resolved.plan.shards)
        if self.resolved.runtime.rendezvous is None:
            fields.setdefault("runtime", {})["rendezvous"] = f"file://{meeting}"
        return ["train", *([self.preset] if self.preset else []), *as_flags(fields), "--resume"]


@contextmanager
def reserved(request: Request) -> Iterator[Job]:
    """Lock the folder of the run for the block, and yield the job. Create the folder if the run is new; if the block fails, remove it again.

    Raises RunInUse, and ValueError if the run exists and may not be resumed, or has another config.
    """
    folder = reserve_run(request.resolved, request.preset, request.resume)
    is_new = not any(folder.path.iterdir())
    try:
        if folder.has_config() and (difference := first_difference(open_run(folder.path)[1], request.resolved)):
            raise ValueError(f"{difference} when {folder.path} was created; set it back, or choose another --name")
        make_folder(folder.path / JOB_FOLDER)
        words = request.words(folder.path.name, folder.path.absolute() / JOB_FOLDER / "meeting")
        yield Job(folder, words, request.sizes, request.restarts, request.options)
    except BaseException:
        if is_new:
            shutil.rmtree(folder.path)
        raise
    finally:
        folder.unlock()

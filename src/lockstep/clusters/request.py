"""A run that the user asks to train on a cluster, and its folder."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lockstep.clusters.job import Job, read_submission
from lockstep.config import Config
from lockstep.config.flags import as_flags
from lockstep.experiment.execute import open_run, reserve_run
from lockstep.experiment.same_experiment import describe_difference
from lockstep.files import make_folder
from lockstep.run.folder import JOB_FOLDER, RunFolder

__all__ = ["Request", "reserved"]


@dataclass(frozen=True)
class Request:
    """A request to train a new or existing run on a cluster."""

    existing: RunFolder | None
    """The run to resume, which the caller has locked; None: a new run, or the one with the name in `resolved`."""
    preset: str | None
    fields: Mapping[str, Mapping[str, object]]
    """Fields of the config that the user has set, by section, besides those of the preset or of the existing run."""
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

    def arguments(self, path: Path, rendezvous_file: Path | None) -> list[str]:
        """Return the arguments of `lockstep` that every rank runs. They start or resume the run in the folder `path`, on any number of ranks.

        The ranks rendezvous through files beside `rendezvous_file`, unless it is None or the user has set `runtime.rendezvous`: names of hosts
        need not resolve then.
        """
        fields = {section: dict(values) for section, values in self.fields.items()}
        if self.existing is None:
            fields.setdefault("run", {})["name"] = path.name
            fields.setdefault("plan", {}).setdefault("shards", self.resolved.plan.shards)
        if rendezvous_file is not None:
            fields.setdefault("runtime", {}).setdefault("rendezvous", f"file://{rendezvous_file}")
        once = [] if self.restarts else ["--restarts", "0"]  # a single rank would otherwise restart itself
        if self.existing is not None:
            return ["resume", str(path), *as_flags(fields), *once]
        return ["train", *([self.preset] if self.preset else []), *as_flags(fields), "--resume", *once]


@contextmanager
def reserved(request: Request) -> Iterator[Job]:
    """Lock the folder of the run for the block, and yield the job. Create the folder if the run is new; if the block fails, remove it again.

    Raises RunInUse, and ValueError if the run exists and may not be resumed, or has another config.
    """
    folder = request.existing or reserve_run(request.resolved, request.preset, request.resume)
    is_new = not any(folder.path.iterdir())
    try:
        is_named = request.existing is None and folder.has_config()
        if is_named and (difference := describe_difference(open_run(folder.path)[1], request.resolved)):
            raise ValueError(f"{difference} when {folder} was created; set it back, or choose another --name")
        make_folder(folder.path / JOB_FOLDER)
        arguments = request.arguments(folder.path.absolute(), folder.path.absolute() / JOB_FOLDER / "rendezvous")
        yield Job(folder, arguments, request.sizes, request.restarts, request.options)
    except BaseException:
        if is_new and read_submission(folder) is None:  # a job that the cluster has accepted will use the folder
            shutil.rmtree(folder.path)
        raise
    finally:
        folder.unlock()

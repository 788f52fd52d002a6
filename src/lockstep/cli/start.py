"""From a run's folder to running ranks, for `train` and `resume`."""

from collections.abc import Iterator
from contextlib import contextmanager

from lockstep.run.folder import RunFolder
from lockstep.run.stop import listen
from lockstep.runtime.meeting import choose_meeting
from lockstep.runtime.place import Place
from lockstep.runtime.settings import RuntimeConfig

__all__ = ["check_launcher", "start", "told_once"]

_USAGE_ERROR = 2


@contextmanager
def told_once(place: Place | None) -> Iterator[None]:
    """What every rank finds wrong before they have met, the first rank of each host tells alone. `place` is this rank's."""
    try:
        yield
    except ValueError:
        if place is not None and place.local_rank:
            raise SystemExit(_USAGE_ERROR) from None
        raise


def check_launcher(place: Place, ranks: int | None, config: RuntimeConfig) -> Place:
    """The place with its meeting. Raises ValueError if `--ranks` was given, or nothing says where the ranks meet."""
    if ranks is not None:
        raise ValueError(f"--ranks is {ranks}: the launcher that started this process has set the number of ranks")
    return choose_meeting(place, config.rendezvous)


def start(folder: RunFolder, ranks: int, resume_from: int) -> int:
    """Carries the run, which the caller has locked, on `ranks` processes of this host. One rank is this process itself."""
    if ranks == 1:
        listen()
        from lockstep.cli.work import train_alone

        return train_alone(folder, resume_from)
    from lockstep.experiment import open_run
    from lockstep.runtime.launch import launch

    _, config = open_run(folder.path)
    return launch(["rank", str(folder.path), str(resume_from)], ranks, config.runtime.backend)

"""From a run's folder to running ranks, for `train` and `resume`."""

from collections.abc import Iterator
from contextlib import contextmanager

from lockstep.config import Config
from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.modules import import_environments
from lockstep.run.folder import RunFolder
from lockstep.run.stop import end_unheard, follow_launcher, listen
from lockstep.runtime.rank_info import RankInfo

__all__ = ["complete", "import_again", "listen_under", "start", "told_once"]


def import_again(config: Config, module: object) -> None:
    """Imports the module that a run's environment lives in, if it was typed again. `module`: what was typed.

    Raises ValueError if it was not: the run's folder may have been written by anybody.
    """
    if config.env.module is not None and module is None:
        raise ValueError(
            f"env.module is {config.env.module!r} in this run: a folder can't have a module imported; give --env.module "
            f"{config.env.module} again, if you trust it"
        )
    import_environments(None if module is None else str(module))


@contextmanager
def told_once(place: RankInfo | None) -> Iterator[None]:
    """What every rank finds wrong before they have met, the first rank of each host tells alone. `place` is this rank's."""
    try:
        yield
    except (ValueError, EnvironmentFailed):
        if place is not None and place.local_rank:
            end_unheard()
        raise


def listen_under(place: RankInfo | None) -> None:
    """Takes signals as requests to stop, in a rank that a launcher started; our own launch does so by itself."""
    if place is not None:
        listen(aloud=place.rank == 0)
        follow_launcher()


def complete(folder: RunFolder, config: Config) -> str:
    """The message for a run that has reached the end of its budget."""
    from lockstep.experiment.resolve import iterations

    return f"{folder.path} is complete: {iterations(config)} iterations; give a larger --total-steps to go on"


def start(folder: RunFolder, ranks: int, resume_from: int) -> int:
    """Carries the run, which the caller has locked, on `ranks` processes of this host. One rank is this process itself."""
    if ranks == 1:
        listen()
        from lockstep.cli.work import train_alone

        return train_alone(folder, resume_from)
    from lockstep.experiment.execute import open_run
    from lockstep.experiment.start import launch_ranks

    _, config = open_run(folder.path)
    modules = [config.env.module] if config.env.module else []  # that was typed: this process has imported it
    return launch_ranks(folder, config, ranks, resume_from, modules)

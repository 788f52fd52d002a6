"""Start of the ranks of a run folder, for `train` and `resume`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lockstep.algorithm.plan import Plan
from lockstep.config import Config
from lockstep.envs.engine import EnvironmentFailed
from lockstep.envs.modules import import_environments
from lockstep.messages import counted
from lockstep.run.folder import RunFolder
from lockstep.run.stop import exit_silently, listen, raise_if_asked, stop_with_launcher
from lockstep.runtime.rank_info import RankInfo

__all__ = [
    "announce_connecting",
    "check_hook_of_run",
    "import_env_module_of_run",
    "listen_under_launcher",
    "report_once",
    "start",
]


def import_env_module_of_run(config: Config, module: object) -> None:
    """Import the module that registers the environment of a run; `module` is the value of `--env.module`, or None.

    Raises ValueError if only the config of the run names a module: the folder may come from an untrusted source.
    """
    if config.env.module is not None and module is None:
        raise ValueError(
            f"env.module is {config.env.module!r} in this run: a run folder can't import modules; pass --env.module "
            f"{config.env.module} again if you trust it"
        )
    import_environments(None if module is None else str(module))


def check_hook_of_run(config: Config, flags: Mapping[str, object]) -> None:
    """Check that a run with a hook is resumed with one, or without on purpose. `flags` are those of the section `run`.

    Raises ValueError if only the config of the run names a hook: the folder may come from an untrusted source.
    """
    if config.run.hooks is not None and "hooks" not in flags:
        raise ValueError(
            f"run.hooks is {config.run.hooks!r} in this run: a run folder can't import modules; pass --run.hooks "
            f"{config.run.hooks} again if you trust it, or --run.hooks none"
        )


@contextmanager
def report_once(rank_info: RankInfo | None) -> Iterator[None]:
    """Let only the first rank of each host report an error: for code that fails with the same error on all ranks.

    The other ranks of the host exit silently. `rank_info` is that of this process; None if no launcher started it.
    """
    try:
        yield
    except (ValueError, EnvironmentFailed):
        if rank_info is not None and rank_info.local_rank:
            exit_silently()
        raise


def listen_under_launcher(rank_info: RankInfo | None) -> None:
    """Handle signals as requests to stop, if a launcher started this rank. Otherwise `start` or `cli/rank.py` does."""
    if rank_info is not None:
        listen(announce=rank_info.rank == 0)
        stop_with_launcher()


def announce_connecting(rank_info: RankInfo, config: Config) -> None:
    """Print a line on rank 0, unless `run.progress` is off: it waits for the other ranks of the launcher before it creates or locks a run folder."""
    if rank_info.rank == 0 and config.run.progress != "off":
        print(f"connecting {counted(rank_info.size, 'rank')} that {rank_info.launcher} has started", flush=True)


def start(folder: RunFolder, sizes: Sequence[int], resume_from: int, hook: str | None, restarts: int) -> int:
    """Train on this host, and return the exit code. The caller holds the run's lock.

    `sizes` are numbers of ranks, as `supervise` takes them, `hook` is the value of `--run.hooks`, and `restarts` that of `--restarts`.
    """
    from lockstep.experiment.execute import open_run

    raise_if_asked()
    _, config = open_run(folder.path)
    if sizes[0] == 1 and not restarts:
        listen()
        from lockstep.cli.train_rank import train_alone
        from lockstep.experiment.hooks import import_hook

        return train_alone(folder, Plan.make(config.plan, 1), resume_from, import_hook(hook))
    from lockstep.experiment.supervise import supervise

    # the user named the module on the command line: `import_env_module_of_run` has imported it
    modules = [config.env.module] if config.env.module else []
    return supervise(folder, sizes, resume_from, modules, hook, restarts)

"""The runs of a sweep on a cluster, for `--on` of `lockstep sweep`."""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.clusters.job import SweepJob
from lockstep.config.compose import merged_tree
from lockstep.run.folder import JOB_FOLDER, RunFolder
from lockstep.run.stop import listen
from lockstep.sweep.member import RUNS, Member, train_arguments

if TYPE_CHECKING:
    from lockstep.sweep.jobs import RunProcess
    from lockstep.sweep.sweep import Sweep

__all__ = ["on_ray", "print_manifests", "submit_to_slurm"]

Tree = Mapping[str, Mapping[str, object]]


def submit_to_slurm(sweep: "Sweep", members: Sequence[Member], args: Namespace, tree: Tree) -> str:
    """Submit the members as a job array, and return its id.

    `tree` has the flags of the config that are the same for all members. Raises ValueError, in one line, if Slurm is missing or refuses the
    job, and RunInUse if an earlier job of the sweep has not ended.
    """
    from lockstep.clusters.slurm import submit_array

    for member in members:
        member.folder.unmark_pruned()
    path = sweep.folder.absolute()
    return submit_array(_sweep_job(members, args, tree, path, path, f"{path / JOB_FOLDER}/"))


def print_manifests(folder: Path, members: Sequence[Member], args: Namespace, tree: Tree) -> None:
    """Print the manifests of the members for Kubernetes, where the volume has the folder of the sweep.

    `tree` is as for `submit_to_slurm`. Raises ValueError, in one line, if Kubernetes can't run the members.
    """
    from lockstep.clusters.kubernetes import mount, sweep_manifests, write_manifests

    runs = mount(folder)
    write_manifests(
        sweep_manifests(_sweep_job(members, args, tree, folder, runs / folder.name, f"{runs / folder.name}-"))
    )


def _sweep_job(
    members: Sequence[Member], args: Namespace, tree: Tree, folder: Path, there: Path, rendezvous: str
) -> SweepJob:
    """Return the members as a job.

    `folder` is the folder of the sweep, `there` its path on the hosts that train, and `rendezvous` the start of the
    paths of files of the rendezvous.
    """
    ranks = {member.ranks for member in members}
    if len(ranks) > 1:
        raise ValueError(
            f"--on is {args.on!r}: the runs of this sweep need {min(ranks)} to {max(ranks)} ranks; set --ranks, the same for all"
        )
    fields = merged_tree(None, args.config, tree)
    once = [] if args.restarts else ["--restarts", "0"]  # a single rank would otherwise restart itself
    arguments = {}
    for member in members:
        runtime = {"rendezvous": f"file://{rendezvous}{member.name}.rendezvous", **fields.get("runtime", {})}
        words = train_arguments(member, args.preset, {**fields, "runtime": runtime}, there / RUNS)
        arguments[member.name] = [*words, *once]
    return SweepJob(RunFolder(folder), arguments, ranks.pop(), args.jobs, args.restarts, dict(args.job))


@contextmanager
def on_ray(sweep: "Sweep", ranks: int, args: Namespace, tree: Tree) -> Iterator[None]:
    """Connect to the cluster for the block, and let the sweep start its runs there, as many at a time as fit or as `--jobs` says.

    `ranks` is the largest number of ranks of a run, and `tree` is as for `submit_to_slurm`. Raises ValueError, in one line, if Ray is
    missing, does not answer, or has no room for a run.
    """
    from lockstep.clusters.ray_connection import connected, rank_capacity, read_address, read_resources

    address, per_rank = read_address(dict(args.job)), read_resources(dict(args.job))
    fields = merged_tree(None, args.config, tree)

    def start(member: Member, _: int) -> "RunProcess":
        from lockstep.clusters.ray_runs import RayRun

        member.folder.unmark_pruned()
        numbers = ["--ranks", str(member.ranks), "--restarts", str(args.restarts)]
        arguments = [*train_arguments(member, args.preset, fields), *numbers]
        resources = {name: member.ranks * number for name, number in per_rank.items()}
        return RayRun(arguments, resources, sweep.logs / f"{member.name}.log", args.restarts)

    with connected(address):
        listen()  # again: Ray has set handlers of its own
        fits = rank_capacity({name: ranks * number for name, number in per_rank.items()})
        if not fits:
            raise ValueError(f"--ranks is {ranks}: no host of the cluster has room for a run of this many ranks")
        sweep.jobs, sweep.start = args.jobs or fits, start
        sweep.logs.mkdir(parents=True, exist_ok=True)
        yield

"""Executing a resolved experiment, and creating, opening and checking run folders."""

import dataclasses
import gc
import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.config import VERSION, Config
from lockstep.config.decode import decode, encode
from lockstep.config.versions import VALUES_BEFORE, check_version, former_defaults, with_present_names
from lockstep.experiment.resolve import importable, iterations
from lockstep.files import remove_leftovers
from lockstep.processes.portable import is_portable
from lockstep.run.environment import describe_environment
from lockstep.run.evaluations import Choice, best_checkpoint
from lockstep.run.folder import RunFolder
from lockstep.run.manifest import CheckpointDamaged

if TYPE_CHECKING:
    from lockstep.algorithm.agent import Agent
    from lockstep.algorithm.plan import Plan
    from lockstep.experiment.build import RankComponents
    from lockstep.experiment.hooks import Hook
    from lockstep.group.group import Group
    from lockstep.run.run import TrainingRun
    from lockstep.runtime.runtime import Runtime
    from lockstep.telemetry.attempts import Attempt

__all__ = [
    "check_checkpoint",
    "create_run",
    "decode_config",
    "execute",
    "load_agent",
    "open_or_create_run",
    "open_run",
    "pick_checkpoint",
    "reserve_run",
    "save_config",
]


def create_run(config: Config, preset: str | None, ranks: int, asked: Config | None = None) -> RunFolder:
    """Create the folder of a new run, with the resolved config. Raises ValueError if the user named it and it exists.

    `asked` is the config before it was resolved, if it is known: the folder records which fields were left open.
    """
    described = _describe(config, preset, ranks, asked)

    def create(path: Path) -> RunFolder:
        named = dataclasses.replace(config, run=dataclasses.replace(config.run, name=path.name))
        return RunFolder.create(path, {"version": VERSION, **encode(named)}, described)

    return _create_new(config, preset, create)


def reserve_run(config: Config, preset: str | None, resume: bool) -> RunFolder:
    """Lock the folder of a run that another process will create: a new folder or, with `resume`, that of the run with this name.

    Raises RunInUse, and ValueError if the user named a run that exists, without `resume`, or if the folder is no run.
    """
    if resume:
        assert config.run.name
        return RunFolder.reserve(Path(config.run.folder) / config.run.name)
    return _create_new(config, preset, partial(RunFolder.reserve, exist_ok=False))


def _create_new(config: Config, preset: str | None, create: Callable[[Path], RunFolder]) -> RunFolder:
    """Call `create` with the path that the config names, else with paths made of the preset and a number until one is free."""
    root, chosen = Path(config.run.folder), config.run.name
    for name in [chosen] if chosen else _names(f"{preset or config.env.id}-seed{config.run.seed}"):
        try:
            return create(root / name)
        except FileExistsError:
            if chosen:
                break
    raise ValueError(
        f"run.name: {root / str(chosen)} exists; choose another --name, or continue with --resume or `lockstep resume {root / str(chosen)}`"
    )


def open_or_create_run(
    config: Config, preset: str | None, ranks: int, asked: Config
) -> tuple[RunFolder, Config | None]:
    """Open and lock the run that `run.name` names, or create it with the resolved config. `asked` is as in `create_run`.

    Return its folder, and its config if the run existed. Raises RunInUse, and ValueError if the folder is no run.
    """
    assert config.run.name
    path = Path(config.run.folder) / config.run.name
    tree = {"version": VERSION, **encode(config)}
    folder, created = RunFolder.open_or_create(path, tree, _describe(config, preset, ranks, asked))
    return folder, None if created else open_run(path)[1]


def _describe(config: Config, preset: str | None, ranks: int, asked: Config | None) -> dict[str, object]:
    described = {**describe_environment(ranks), "preset": preset, "total_steps": config.run.total_steps}
    if asked is not None:
        before, after = encode(asked), encode(config)
        described["decided"] = [
            f"{section}.{name}"
            for section, fields in after.items()
            for name, value in fields.items()
            if before[section][name] in ("auto", None) and value != before[section][name]
        ]
    return described


def _names(stem: str) -> Iterator[str]:
    plain = re.sub(r"[^a-z0-9._-]", "-", stem.lower().replace("()", ""))[:80]
    yield plain
    for number in itertools.count(2):
        yield f"{plain}-{number}"


def open_run(path: Path) -> tuple[RunFolder, Config]:
    """Open an existing run and read its config. Raises ValueError if there is none or it can't be read."""
    folder = RunFolder.open(path)
    return folder, decode_config(folder.tree(), path / "config.json")


def decode_config(tree: dict[str, object], path: Path) -> Config:
    """Return the resolved config that the file `path` holds as a tree. Raises ValueError if it can't be read."""
    tree = dict(tree)
    if "version" not in tree:
        raise ValueError(f"{path} has no version: it was not written by lockstep")
    version = check_version(tree.pop("version"), path)
    try:
        defaults = decode(former_defaults(version), decode(VALUES_BEFORE, Config()))
        return decode(with_present_names(tree), defaults)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def execute(
    folder: RunFolder, config: Config, plan: "Plan", runtime: "Runtime", resume_from: int, hook: "Hook | None" = None
) -> "TrainingRun":
    """Train from iteration `resume_from` (0: from the start) to the end, as one of the runtime's ranks. Rank 0 calls `hook`.

    Raises ValueError if the checkpoint does not fit, EnvironmentFailed, HookFailed, NonFinite, RankLost, RanksDiffer and
    ReplicasDiffer.
    """
    from lockstep.experiment.hooks import hook_name
    from lockstep.experiment.same_ranks import check_same_folder
    from lockstep.telemetry.attempts import Attempt, record_attempt

    folder.make_absolute()
    group = runtime.group
    check_same_folder(group, folder, config.runtime.timeout)
    start = (
        folder,
        resume_from,
        iterations(config),
        group.size,
        config.plan.kind,
        "" if hook is None else hook_name(hook),
    )
    with nullcontext(Attempt()) if group.rank else record_attempt(*start) as attempt:
        return _execute(folder, config, plan, runtime, resume_from, attempt, hook)


def _execute(
    folder: RunFolder,
    config: Config,
    plan: "Plan",
    runtime: "Runtime",
    resume_from: int,
    attempt: "Attempt",
    hook: "Hook | None",
) -> "TrainingRun":
    from lockstep.experiment.build import build
    from lockstep.experiment.dump import DumpWriter
    from lockstep.experiment.hooks import bind_hook
    from lockstep.run.run import TrainingRun
    from lockstep.runtime.threads import arithmetic_threads, limit_threads
    from lockstep.telemetry.recorder import Recorder

    group = runtime.group
    limit_threads(arithmetic_threads(config.runtime, group.rank in plan.training))
    components = build(config, plan, runtime)
    components.update.guard.saver = DumpWriter(folder, config)
    frames = components.update.agent.spaces.frames_per_step
    modules = importable(config, "run") if config.run.capture_video or config.run.evaluate_every else ()
    telemetry = partial(Recorder, config=config.run, modules=modules)
    run = TrainingRun(
        folder,
        config.run,
        plan=plan,
        lag=config.plan.lag,
        group=group,
        trainers=components.trainers,
        iterations=iterations(config),
        frames=frames,
        open_telemetry=telemetry,
        hook=None if hook is None else bind_hook(hook, config, folder.path),
        info_metrics=config.env.info_metrics,
        shows_faults=config.env.on_fault == "replace",
        preempts=config.plan.preempt is not None,
    )
    attempt.run = run
    try:
        _restore(components, run, group, resume_from, config.runtime.compile == "on")
        if config.run.capture_video or config.run.evaluate_every:
            runtime.pin_to_core()
        _train(components, run)
    finally:
        try:
            run.close()
        finally:
            components.close()
    return run


def _restore(
    components: "RankComponents", run: "TrainingRun", group: "Group", resume_from: int, compiled: bool
) -> None:
    """Restore the state of iteration `resume_from` on every rank, if any, and prepare to train."""
    from lockstep.experiment.same_ranks import check_same_kernels
    from lockstep.group.channel import TIMEOUT_FACTOR
    from lockstep.run.checkpoint import Checkpoint

    if resume_from:
        checkpoint = Checkpoint(run.folder.checkpoint(resume_from))
        run.resume(checkpoint, components.shards, components.update, components.exchange)
    # Later checkpoints are removed only after every rank has restored its state. Ranks that train may have to build the interpreter first.
    _wait_until_built(group)
    if compiled:
        check_same_kernels(group, components.update.kernel_digest())
    if group.rank == 0:
        _remove_after(run.folder, resume_from)
    group.barrier("resume", TIMEOUT_FACTOR)  # copying a large metrics.jsonl takes time
    run.start(components.shards, components.update)
    gc.freeze()  # these objects live until the end: the garbage collector need not scan them


def _remove_after(folder: RunFolder, iteration: int) -> None:
    """Remove what the run will write again from `iteration` on, and what a killed process has left."""
    from lockstep.run.checkpoint_writer import remove_checkpoints_after
    from lockstep.run.evaluations import remove_evaluations_after

    remove_checkpoints_after(folder, iteration)
    folder.truncate_metrics(iteration)
    remove_evaluations_after(folder, iteration)
    remove_leftovers(folder.path)


def _wait_until_built(group: "Group") -> None:
    from lockstep.group.channel import TIMEOUT_FACTOR
    from lockstep.group.group import RankLost
    from lockstep.run.stop import raise_if_asked

    try:
        group.barrier("resume", TIMEOUT_FACTOR)
    except RankLost:
        raise_if_asked()  # the other rank may have stopped because of the same signal
        raise


def _train(components: "RankComponents", run: "TrainingRun") -> None:
    from lockstep.algorithm.non_finite import NonFinite, NonFiniteWeights
    from lockstep.loop import train

    try:
        train(components.shards, components.exchange, components.update, run)
    except (
        ValueError
    ) as error:  # a ValueError is a user's mistake before the start; here it is a bug, and needs its traceback
        raise RuntimeError(f"training failed: {error}") from error
    except NonFinite as error:
        if not isinstance(error, NonFiniteWeights):  # the players have not been told yet
            components.exchange.report_failure(run.done + 1)
        error.args = (f"{error}; {run.last_checkpoint()}",)
        raise


def load_agent(folder: RunFolder, iteration: Choice = None) -> "tuple[Config, Agent]":
    """Load the agent of a checkpoint; None: the newest. Raises ValueError if there is none or it does not fit.

    It acts by kernels if the run used them. With portable bits, functions of PyTorch are replaced as in the ranks, if this process was started
    with `portable_variables`.
    """
    from lockstep.envs.catalog import describe_env
    from lockstep.experiment.build import restore_agent, use_kernels_of_run
    from lockstep.run.checkpoint import Checkpoint
    from lockstep.runtime.portable_functions import replace_functions

    _, config = open_run(folder.path)
    if config.runtime.bits == "portable" and is_portable():
        replace_functions()
    spaces = describe_env(config.env)
    checkpoint = Checkpoint(folder.checkpoint(pick_checkpoint(folder, iteration)))
    saved = checkpoint.tensors("agent")
    with _reporting(checkpoint.path):
        agent = restore_agent(config, spaces, saved)
    use_kernels_of_run(agent, config)
    return config, agent


def check_checkpoint(folder: RunFolder, config: Config, iteration: int, verified: dict[str, object]) -> None:
    """Load everything that the ranks will load of a checkpoint. `verified` is the result of `verify`.

    Raises CheckpointDamaged, and ValueError if it does not fit.
    """
    from lockstep.algorithm.update import Update
    from lockstep.experiment.build import make_agent
    from lockstep.group.solo import Solo
    from lockstep.run.checkpoint import Checkpoint, SavedCounters

    checkpoint = Checkpoint(folder.checkpoint(iteration), verified)
    shards = range(config.plan.shards or 1)
    update = Update(make_agent(config), config.ppo, Solo(), shards, config.run.seed)
    with _reporting(checkpoint.path):
        SavedCounters.of(checkpoint.state)
        update.agent.load(checkpoint.tensors("agent"))
        update.load(checkpoint.tensors("optimizer"))
        update.load_shard_states(checkpoint.tensors)
        if config.plan.lag:
            update.agent.load(checkpoint.tensors("acting"))
        for shard in shards:
            checkpoint.shard(shard)


@contextmanager
def _reporting(checkpoint: Path) -> Iterator[None]:
    """Name the checkpoint in a ValueError that is raised while it is loaded."""
    from lockstep.models.state import NonFiniteState

    try:
        yield
    except CheckpointDamaged:
        raise
    except NonFiniteState as error:
        raise CheckpointDamaged(f"checkpoint {checkpoint} can't be used: {error}") from None
    except ValueError as error:
        raise ValueError(f"checkpoint {checkpoint} does not fit this run: {error}") from None


def save_config(folder: RunFolder, config: Config) -> None:
    """Replace the config of a run that is resumed with another budget or plan."""
    folder.rewrite({"version": VERSION, **encode(config)})


def pick_checkpoint(folder: RunFolder, iteration: Choice) -> int:
    """Return the iteration of the chosen checkpoint. Raises ValueError if there is no such checkpoint."""
    checkpoints = folder.checkpoints()
    if not checkpoints:
        raise ValueError(f"{folder} has no checkpoint yet")
    if iteration == "best":
        return best_checkpoint(folder)
    if iteration is not None and iteration not in checkpoints:
        raise ValueError(f"iteration is {iteration}: {folder} has checkpoints of {', '.join(map(str, checkpoints))}")
    return checkpoints[-1] if iteration is None else iteration

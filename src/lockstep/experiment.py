"""An experiment put together: from a config to environments, agent, update and run."""

import dataclasses
import gc
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.config import VERSION, Config
from lockstep.config.decode import decode, encode
from lockstep.envs.catalog import describe_env
from lockstep.envs.choice import choose_engine
from lockstep.plan import Plan
from lockstep.run.environment import describe_environment
from lockstep.run.folder import RunFolder
from lockstep.runtime.checks import find_compiler

if TYPE_CHECKING:
    from lockstep.agent import Agent
    from lockstep.cast import Cast
    from lockstep.envs.spaces import Spaces
    from lockstep.run.run import Run
    from lockstep.runtime.runtime import Runtime

__all__ = [
    "check_checkpoint",
    "compiles",
    "create_run",
    "execute",
    "iterations",
    "load_agent",
    "open_run",
    "pick_checkpoint",
    "resolve",
    "save_config",
]


_REPAYS = 5_000
"""Gradient steps of a run that is worth compiling for. Each is some 0.7 ms faster; what was compiled serves all runs of the same shapes, of
other seeds and rates say, and is repaid by the fourth at the latest."""
_SEQUENCE = 32
"""Steps of a sequence at most, where none are given."""
_MOST_STEPS = 100_000_000
"""Of one iteration: rollouts are kept in memory."""


def resolve(config: Config, ranks: int) -> Config:
    """The config with everything decided: counts, shards, engine. A pure function of the config, the number of ranks and what
    is installed.

    Raises ValueError, in one line, for whatever can't be run.
    """
    env, plan = config.env, config.plan
    if env.per_rank is not None:
        env = dataclasses.replace(env, count=env.per_rank * ranks, per_rank=None)
        config = dataclasses.replace(config, env=env)
    shards = len(Plan.make(plan, ranks).shards)
    _check_plan(config, ranks)
    if env.count % shards:
        raise ValueError(f"env.count is {env.count}: it must be divisible by plan.shards, which is {shards}")
    count = env.count // shards
    config = _with_sequences(config)
    sequences, length = count * config.rollout.steps, config.rollout.sequence_length
    if sequences // (length or 1) % config.ppo.minibatches:
        cut = f" / {length} steps of a sequence" if length else ""
        raise ValueError(
            f"ppo.minibatches is {config.ppo.minibatches}: it must divide a shard's rollout, {count} environments x "
            f"{config.rollout.steps} steps{cut} = {sequences // (length or 1)}"
        )
    batch = env.count * config.rollout.steps
    if config.run.total_steps < batch:
        raise ValueError(
            f"run.total_steps is {config.run.total_steps}: one iteration alone takes {batch} (env.count x rollout.steps)"
        )
    if batch > _MOST_STEPS:
        raise ValueError(
            f"rollout.steps is {config.rollout.steps}: with env.count {env.count} one iteration is {batch:,} steps; {_MOST_STEPS:,} are the most"
        )
    steers = config.ppo.learning_rate_kl is not None or config.ppo.surrogate == "kl"
    if steers and config.ppo.epochs_of_policy * config.ppo.minibatches == 1:
        raise ValueError(
            "ppo.epochs is 1: learning_rate_kl and surrogate 'kl' need at least 2 gradient steps per update, or the KL is always 0"
        )
    if config.ppo.separate and config.policy.shared:
        raise ValueError(
            "policy.shared is true: separate epochs or learning rates for policy and value need separate trunks"
        )
    if env.engine == "auto":
        env = dataclasses.replace(env, engine=choose_engine(env.id, count, env.options))
    spaces = describe_env(env)
    if config.policy.squash and not spaces.continuous_size:
        raise ValueError(f"policy.squash is true: {env.id} has discrete actions, which can't be squashed")
    if config.policy.squash and not (abs(spaces.action_low).max() < 1e30 and abs(spaces.action_high).max() < 1e30):
        raise ValueError(f"policy.squash is true: the actions of {env.id} have no bounds to squash onto")
    _check_policy(config, spaces)
    return dataclasses.replace(
        config,
        env=env,
        plan=dataclasses.replace(plan, shards=shards),
        runtime=dataclasses.replace(config.runtime, compile="on" if compiles(config) and find_compiler() else "off"),
    )


def _check_policy(config: Config, spaces: "Spaces") -> None:
    """Raises ValueError for a policy that these observations do not fit."""
    policy, env_id = config.policy, config.env.id
    if spaces.images and policy.encoder == "mlp":
        raise ValueError(f"policy.encoder is 'mlp': {env_id} has images; use nature or impala")
    if not spaces.images and policy.encoder in ("nature", "impala"):
        raise ValueError(f"policy.encoder is {policy.encoder!r}: {env_id} has no images; use mlp")
    if policy.normalize_observations and not spaces.feature_size:
        raise ValueError(
            f"policy.normalize_observations is true: {env_id} has only images, whose bytes are divided by 255 in any case"
        )
    if spaces.images or policy.core != "none" or policy.encoder not in ("auto", "mlp"):
        # these are made of parts that may refuse: so one is made here, before anything starts
        import torch

        from lockstep.agent import Agent

        Agent(spaces, policy, False, config.run.seed, torch.float32)


def _with_sequences(config: Config) -> Config:
    """The config with the length of sequences decided. Raises ValueError for one that does not fit."""
    rollout, core = config.rollout, config.policy.core
    length, steps = rollout.sequence_length, rollout.steps
    if core == "none":
        for name, value in (("sequence_length", length), ("recompute_states", rollout.recompute_states or None)):
            if value is not None:
                raise ValueError(
                    f"rollout.{name} is {value}: it is for a policy with memory; choose one with policy.core"
                )
        return config
    if length is None:
        length = max(size for size in range(1, min(steps, _SEQUENCE) + 1) if steps % size == 0)
    if steps % length:
        raise ValueError(f"rollout.sequence_length is {length}: it must divide rollout.steps, which is {steps}")
    return dataclasses.replace(config, rollout=dataclasses.replace(rollout, sequence_length=length))


def compiles(config: Config) -> bool:
    """Whether `runtime.compile` asks for a compiler. Raises ValueError for `on` where nothing can be compiled."""
    runtime, ppo = config.runtime, config.ppo
    obstacle = next(
        (
            f"{field} is {value!r}"
            for field, value, fine in (
                ("runtime.device", runtime.device, ("auto", "cpu")),
                ("runtime.precision", runtime.precision, ("fp32", "fp64")),
                ("plan.gradients", config.plan.gradients, ("ordered",)),
                ("policy.core", config.policy.core, ("none",)),
                ("policy.encoder", config.policy.encoder, ("auto", "mlp")),
            )
            if value not in fine
        ),
        None,
    )
    if runtime.compile == "on" and obstacle:
        raise ValueError(
            "runtime.compile is 'on': it needs the CPU, fp32 or fp64, ordered gradients and a policy of plain layers, but "
            f"{obstacle}"
        )
    steps = iterations(config) * max(ppo.epochs_of_policy, ppo.epochs_of_value) * ppo.minibatches
    return not obstacle and (runtime.compile == "on" or (runtime.compile == "auto" and steps >= _REPAYS))


def _check_plan(config: Config, ranks: int) -> None:
    """Raises ValueError for what a plan of that many ranks can't do."""
    plan, made, threads = config.plan, Plan.make(config.plan, ranks), config.runtime.player_threads
    if plan.gradients == "ddp" and len(made.training) == 1:
        raise ValueError(
            "plan.gradients is 'ddp': the plan has one trainer, so there is nothing to reduce; use more trainers, or 'ordered' "
            "in a new run"
        )
    if threads not in (None, config.runtime.threads) and set(made.playing) & set(made.training):
        raise ValueError(
            f"runtime.player_threads is {threads}: this plan has ranks that play and train, with one number of threads for both; "
            "leave it out in a new run, or let players do nothing else"
        )
    if plan.correction == "vtrace" and not plan.lag:
        raise ValueError("plan.correction is 'vtrace': it corrects for a lag, and plan.lag is 0")


def create_run(config: Config, preset: str | None, ranks: int) -> RunFolder:
    """The folder of a new run, holding the resolved config. Raises ValueError if it exists and its name was chosen."""
    root, described = Path(config.run.folder), describe_environment(ranks)
    chosen = config.run.name
    for name in [chosen] if chosen else _names(f"{preset or config.env.id}-seed{config.run.seed}"):
        named = dataclasses.replace(config, run=dataclasses.replace(config.run, name=name))
        try:
            return RunFolder.create(root / name, {"version": VERSION, **encode(named)}, described)
        except FileExistsError:
            if chosen:
                break
    raise ValueError(
        f"run.name: {root / str(chosen)} exists; choose another --name, or go on with `lockstep resume {root / str(chosen)}`"
    )


def _names(stem: str) -> Iterator[str]:
    plain = re.sub(r"[^a-z0-9._-]", "-", stem.lower().replace("()", ""))[:80]
    yield plain
    for number in itertools.count(2):
        yield f"{plain}-{number}"


def open_run(path: Path) -> tuple[RunFolder, Config]:
    """An existing run and its config. Raises ValueError if there is none or it can't be read."""
    folder = RunFolder.open(path)
    tree = folder.tree()
    found = tree.pop("version", None)
    if not isinstance(found, int):
        raise ValueError(f"{path}/config.json has no version: it was not written by lockstep")
    if found > VERSION:
        raise ValueError(
            f"{path}/config.json has version {found}, newer than this lockstep reads ({VERSION}): upgrade lockstep"
        )
    return folder, decode(tree, Config())


def iterations(config: Config) -> int:
    """Number of the last iteration of a resolved config."""
    return config.run.total_steps // (config.env.count * config.rollout.steps)


def execute(folder: RunFolder, config: Config, runtime: "Runtime", resume_from: int) -> "Run":
    """Trains from iteration `resume_from` (0: from the start) to the end, as one of the runtime's ranks.

    Raises ValueError if the checkpoint does not fit, NonFinite, RankLost and ReplicasDiffer.
    """
    from lockstep.cast import build
    from lockstep.group.channel import PATIENCE
    from lockstep.run.checkpoint import Checkpoint, forget_after
    from lockstep.run.run import Run
    from lockstep.runtime.threads import arithmetic_threads, limit_threads

    group = runtime.group
    limit_threads(arithmetic_threads(config.runtime, group.rank in Plan.make(config.plan, group.size).training))
    cast = build(config, runtime)
    frames = cast.update.agent.spaces.frames_per_step
    run = Run(folder, config.run, cast.plan, config.plan.lag, group, cast.trainers, iterations(config), frames)
    try:
        if resume_from:
            run.resume(Checkpoint(folder.checkpoint(resume_from)), cast.shards, cast.update, cast.exchange)
        # Nothing is forgotten before every rank has what it needs. Ranks that train may have had to compile first.
        group.barrier("resume", PATIENCE)
        if group.rank == 0:
            forget_after(folder, resume_from)
            folder.cut_metrics(resume_from)
        run.start(cast.shards)
        gc.freeze()  # what is here now stays: the search for garbage need not look at it again, nor the end of the process
        _train(cast, run)
    finally:
        run.close()
        cast.close()
    return run


def _train(cast: "Cast", run: "Run") -> None:
    from lockstep.loop import train
    from lockstep.update import NonFinite

    try:
        train(cast.shards, cast.exchange, cast.update, run)
    except ValueError as error:  # ValueErrors are for users before the start; here one is a fault, to be shown in full
        raise RuntimeError(f"training failed: {error}") from error
    except NonFinite:
        cast.exchange.give_up(run.done + 1)
        raise


def load_agent(folder: RunFolder, iteration: int | None = None) -> "tuple[Config, Agent]":
    """The agent of a run's checkpoint; None: the newest. Raises ValueError if there is none or it does not fit."""
    from lockstep.cast import make_agent
    from lockstep.run.checkpoint import Checkpoint

    _, config = open_run(folder.path)
    agent = make_agent(config)
    checkpoint = Checkpoint(folder.checkpoint(pick_checkpoint(folder, iteration)))
    try:
        agent.load(checkpoint.tensors("agent"))
    except ValueError as error:
        raise ValueError(f"checkpoint {checkpoint.path} does not fit this run: {error}") from None
    return config, agent


def check_checkpoint(folder: RunFolder, config: Config, iteration: int) -> None:
    """Loads what every rank will load of a checkpoint. Raises ValueError if it is broken or does not fit."""
    from lockstep.cast import make_agent
    from lockstep.group.solo import Solo
    from lockstep.run.checkpoint import Checkpoint
    from lockstep.update import Update

    checkpoint = Checkpoint(folder.checkpoint(iteration))
    shards = range(config.plan.shards or 1)
    update = Update(make_agent(config), config.ppo, Solo(), shards, config.run.seed)
    try:
        update.agent.load(checkpoint.tensors("agent"))
        update.load(checkpoint.tensors("optimizer"))
        if config.plan.lag:
            update.agent.load(checkpoint.tensors("acting"))
        for shard in shards:
            checkpoint.shard(shard)
    except ValueError as error:
        raise ValueError(f"checkpoint {checkpoint.path} does not fit this run: {error}") from None


def save_config(folder: RunFolder, config: Config) -> None:
    """Replaces a run's config, when it is to go on for longer."""
    folder.rewrite({"version": VERSION, **encode(config)})


def pick_checkpoint(folder: RunFolder, iteration: int | None) -> int:
    """The iteration of the newest checkpoint, or `iteration` if it has one. Raises ValueError if there is none."""
    found = folder.checkpoints()
    if not found:
        raise ValueError(f"{folder.path} has no checkpoint yet")
    if iteration is not None and iteration not in found:
        raise ValueError(f"iteration is {iteration}: {folder.path} has checkpoints of {', '.join(map(str, found))}")
    return found[-1] if iteration is None else iteration

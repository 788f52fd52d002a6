"""Resolving a config: every open choice is made, and a config that can't be run is refused."""

import dataclasses
import importlib.util
from contextlib import chdir
from typing import TYPE_CHECKING

import gymnasium as gym

from lockstep.algorithm.plan import Plan
from lockstep.compiling.library import interpreter_problem
from lockstep.config import Config
from lockstep.envs.catalog import (
    check_autoreset,
    describe_env,
    has_time_limit,
    make_one,
    restarted_episode_limit,
    restarts_episodes,
)
from lockstep.envs.choice import choose_engine
from lockstep.envs.functions import reference, registered_function
from lockstep.envs.settings import EngineName, EnvConfig
from lockstep.experiment.resolve_games import check_games, with_agents
from lockstep.models.settings import BUILT_IN
from lockstep.presets import check_family
from lockstep.telemetry.trackers import check_trackers

if TYPE_CHECKING:
    from lockstep.envs.spaces import Spaces

__all__ = ["compiles", "cut_episodes", "fastest_engine", "importable", "iterations", "resolve"]

_NORMAL = ("gaussian", "gaussian-state-std", "gsde")
"""Normal distributions, whose actions may be squashed."""
_MINIBATCH = 64
"""Steps in a minibatch, if their number is not set."""
_MINIBATCHES = 32
"""Maximum of the default number of minibatches."""
_SEQUENCE = 32
"""Maximum of the default sequence length."""
_MOST_STEPS = 100_000_000
"""Maximum number of steps in an iteration: rollouts are kept in memory."""
_WIDE_RANGE = 40
"""Range of an action, in initial standard deviations, above which actions are squashed by default. Continuous tasks of Gymnasium have 2 to 11.
Pendulum with its actions scaled to ±200 reached -1,045 in 148,768 steps without squashing, and -145 with it (seed 0)."""
_LIMITS = 10
"""Number of episode limits between two checkpoints below which `cut_episodes` warns."""


def resolve(config: Config, ranks: int, plan: Plan | None = None, preset: str | None = None) -> Config:
    """Return the config with every choice made: counts, shards, engine. It depends on the config, the number of ranks, and what is installed.
    `plan` is the plan of these ranks, if it has been made already. `preset` is the one from which the config comes.

    Raises ValueError in one line if the config can't be run.
    """
    with chdir("."):  # an environment may change the working directory, in which the run is created afterwards
        return _resolve(config, ranks, plan, preset)


def _resolve(config: Config, ranks: int, plan: Plan | None, preset: str | None) -> Config:
    env = config.env
    if env.per_rank is not None:
        env = dataclasses.replace(env, count=env.per_rank * ranks, per_rank=None)
        config = dataclasses.replace(config, env=env)
    plan = plan or Plan.make(config.plan, ranks)
    shards = len(plan.shards)
    _check_plan(config, plan)
    if env.count % shards:
        raise ValueError(f"env.count is {env.count}: it must be divisible by plan.shards, which is {shards}")
    count = env.count // shards
    config = _with_minibatches(_with_sequences(config), shards)
    batch = env.count * config.rollout.steps
    if config.run.total_steps < batch:
        raise ValueError(
            f"run.total_steps is {config.run.total_steps}: one iteration alone takes {batch} (env.count x rollout.steps)"
        )
    if batch > _MOST_STEPS:
        raise ValueError(
            f"rollout.steps is {config.rollout.steps}: with env.count {env.count} one iteration is {batch:,} steps; {_MOST_STEPS:,} are the most"
        )
    _check_ppo(config)
    if env.engine == "auto":
        env = dataclasses.replace(env, engine=fastest_engine(env, count))
        if env.engine != "gymnasium-vector" and _evaluates_between_checkpoints(config) and restarts_episodes(env):
            env = dataclasses.replace(env, engine="gymnasium")
    spaces = describe_env(env)
    check_autoreset(env)
    if env.engine == "pettingzoo":
        env = with_agents(env, shards)
        check_games(config, env.id)
    check_family(preset, env.id, bool(spaces.images), spaces.continuous_size > 0)
    config = _with_spaces(config, spaces)
    _check_policy(config, spaces)
    _check_curiosity(config, spaces, count * config.rollout.steps)
    check_trackers(config.run.loggers)
    if config.run.capture_video:
        _check_videos(config)
    if config.run.evaluate_every is not None:
        _check_evaluation(dataclasses.replace(config, env=env))
    return dataclasses.replace(
        config,
        env=env,
        plan=dataclasses.replace(config.plan, shards=shards),
        runtime=dataclasses.replace(
            config.runtime,
            compile="on" if compiles(config, bool(spaces.images)) and interpreter_problem() is None else "off",
        ),
    )


def _check_ppo(config: Config) -> None:
    """Raise ValueError for options of PPO that exclude each other."""
    rises = config.ppo.learning_rate_kl is not None and config.ppo.learning_rate_kl_max > 1
    if (rises or config.ppo.surrogate == "kl") and config.ppo.epochs_of_policy * config.ppo.minibatch_count == 1:
        raise ValueError(
            "ppo.epochs is 1: learning_rate_kl_max above 1 and surrogate 'kl' need at least 2 gradient steps per update, or the KL is always 0"
        )
    if (config.ppo.separate or config.ppo.separate_grad_norms) and config.policy.shared:
        raise ValueError(
            "policy.shared is true: separate epochs, learning rates or gradient norms of policy and value need separate trunks"
        )


def _check_videos(config: Config) -> None:
    """Raise ValueError if videos can't be recorded with what is installed, or in this environment."""
    setting = f"run.capture_video is {config.run.capture_video}"
    if importlib.util.find_spec("imageio_ffmpeg") is None:
        raise ValueError(f"{setting}: videos need imageio-ffmpeg; pip install 'lockstep-rl[video]', or set it to 0")
    env = make_one(config.env)
    env.close()
    if "rgb_array" not in (env.metadata.get("render_modes") or ()):
        raise ValueError(f"{setting}: {config.env.id} has no render_mode 'rgb_array'")
    importable(config, setting)


def fastest_engine(env: EnvConfig, count: int) -> EngineName:
    """Return the engine that `env.engine: auto` means for `count` environments per shard, if nothing but the environment matters."""
    return choose_engine(env.id, count, env.options, bool(env.wrappers), env.on_fault == "replace")


def _evaluates_between_checkpoints(config: Config) -> bool:
    every = config.run.evaluate_every
    return every is not None and every % config.run.checkpoint_every != 0


def _check_evaluation(config: Config) -> None:
    """Raise ValueError if agents can't be evaluated at the chosen iterations, or in this environment."""
    every, interval = config.run.evaluate_every, config.run.checkpoint_every
    setting = f"run.evaluate_every is {every}"
    if _evaluates_between_checkpoints(config) and restarts_episodes(config.env):
        raise ValueError(
            f"{setting}: env.engine {config.env.engine!r} begins new episodes at every checkpoint, so it must be a multiple of "
            f"run.checkpoint_every, which is {interval}; set it to {interval}, or env.engine to 'gymnasium'"
        )
    try:
        make_one(config.env).close()
    except ValueError as error:
        raise ValueError(f"{setting}: it needs a single Gymnasium environment; {error}") from None
    importable(config, setting)


def importable(config: Config, setting: str) -> list[str]:
    """Return the modules that other processes import to find environment and policy; `module:function` for a function.

    Raises ValueError, which begins with `setting`, if the running program itself defines one of them.
    """
    from lockstep.models.registry import defined_in, registrable_names

    known, make = gym.registry.get(config.env.id), registered_function(config.env.id)
    function = None if make is None else reference(make)
    entry = getattr(known, "entry_point", None) or getattr(known, "vector_entry_point", None)
    in_program = getattr(entry, "__module__", None) == "__main__" or str(entry).startswith("__main__:")
    parts = [
        *(
            (f"policy.{kind} {name!r}", defined_in(kind, name) == "__main__")
            for kind, name in registrable_names(config.policy)
        ),
        (f"env.id {config.env.id!r}", in_program),
        (f"env {config.env.id!r}", make is not None and function is None),
    ]
    for part, defined_here in parts:
        if defined_here:
            raise ValueError(
                f"{setting}: other processes can't find {part}, which this program defines; put it into a module that it imports"
            )
    return [name for name in (config.env.module, function) if name]


def _check_policy(config: Config, spaces: "Spaces") -> None:
    """Raise ValueError if the policy does not fit the observations and actions."""
    policy, env_id = config.policy, config.env.id
    if policy.squash and not spaces.continuous_size:
        raise ValueError(f"policy.squash is true: {env_id} has discrete actions, which can't be squashed")
    if policy.distribution != "gaussian" and not spaces.continuous_size:
        raise ValueError(
            f"policy.distribution is {policy.distribution!r}: {env_id} has discrete actions, which have a categorical distribution"
        )
    if policy.squash and not _has_bounds(spaces):
        raise ValueError(f"policy.squash is true: the actions of {env_id} have no bounds to squash onto")
    if spaces.images and policy.encoder == "mlp":
        raise ValueError(f"policy.encoder is 'mlp': {env_id} has images; use nature, impala or grid")
    if not spaces.images and policy.encoder in ("nature", "impala", "grid"):
        raise ValueError(f"policy.encoder is {policy.encoder!r}: {env_id} has no images; use mlp")
    if policy.normalize_observations and not spaces.feature_size:
        raise ValueError(
            f"policy.normalize_observations is true: {env_id} has only images, whose bytes are divided by 255 in any case"
        )
    parts = policy.core, policy.encoder in ("auto", "mlp"), policy.head, policy.distribution
    if spaces.images or parts != ("none", True, "mlp", "gaussian"):
        # their parts have checks of their own, so one is constructed here, before anything starts
        import torch

        from lockstep.algorithm.agent import Agent
        from lockstep.models.registry import is_registered, registrable_names

        own = any(is_registered(kind, name) for kind, name in registrable_names(policy))
        device = torch.device("cpu" if own else "meta")  # only modules of users are checked by computing with them
        with device:
            Agent(spaces, policy, False, config.run.seed, torch.float32, device)


def _has_bounds(spaces: "Spaces") -> bool:
    """Return True if all continuous components of actions are bounded."""
    return bool(abs(spaces.action_low).max() < 1e30 and abs(spaces.action_high).max() < 1e30)


def _check_curiosity(config: Config, spaces: "Spaces", samples: int) -> None:
    """Raise ValueError if the method can't be used. `samples` is the number in a shard's rollout."""
    curiosity, env = config.curiosity, config.env
    if curiosity.kind == "none":
        return
    if not spaces.feature_size and not spaces.images:
        raise ValueError(
            f"curiosity.kind is {curiosity.kind!r}: the observations of {env.id} hold nothing that could be new"
        )
    if curiosity.channels is not None and not spaces.images:
        raise ValueError(f"curiosity.channels is {curiosity.channels}: {env.id} has no images")
    if curiosity.episodic and not has_time_limit(env):
        raise ValueError(
            f"curiosity.kind is {curiosity.kind!r}: it compares within an episode, and those of {env.id} have no time limit; set one "
            "with env.wrappers, for example TimeLimit(max_episode_steps=1000), or use another kind"
        )
    if curiosity.kind == "re3" and curiosity.neighbors >= samples:
        raise ValueError(
            f"curiosity.neighbors is {curiosity.neighbors}: a shard's rollout, in which re3 looks for them, has {samples} steps"
        )
    if curiosity.warmup >= iterations(config):
        raise ValueError(
            f"curiosity.warmup is {curiosity.warmup}: the run has {iterations(config)} iterations, so nothing would be trained"
        )


def _with_sequences(config: Config) -> Config:
    """Return the config with the sequence length resolved. Raises ValueError if it does not fit."""
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


def _with_minibatches(config: Config, shards: int) -> Config:
    """Return the config with the number of minibatches resolved. Raises ValueError if it does not fit."""
    rollout, minibatches = config.rollout, config.ppo.minibatches
    count, length = config.env.count // shards, rollout.sequence_length or 1
    units = count * rollout.steps // length
    if minibatches is None:
        most = min(_MINIBATCHES, max(1, config.env.count * rollout.steps // _MINIBATCH))
        minibatches = max(number for number in range(1, most + 1) if units % number == 0)
    if units % minibatches:
        cut = f" / {length} steps of a sequence" if rollout.sequence_length else ""
        raise ValueError(
            f"ppo.minibatches is {minibatches}: it must divide a shard's rollout, {count} environments x {rollout.steps} steps{cut} = {units}"
        )
    return dataclasses.replace(config, ppo=dataclasses.replace(config.ppo, minibatches=minibatches))


def _with_spaces(config: Config, spaces: "Spaces") -> Config:
    """Return the config with the fields resolved that depend on the spaces: normalization, the initial standard deviation, and squashing."""
    policy, ppo = config.policy, config.ppo
    squash = bool(policy.squash)
    if spaces.continuous_size:
        log_std = policy.initial_log_std(spaces.continuous_size)
        policy = dataclasses.replace(policy, log_std=log_std)
        if policy.squash is None and policy.distribution in _NORMAL and _has_bounds(spaces):
            squash = float((spaces.action_high - spaces.action_low).max()) > _WIDE_RANGE * policy.initial_std(
                spaces.continuous_size
            )
    policy = dataclasses.replace(policy, squash=squash)
    if policy.normalize_observations is None:
        policy = dataclasses.replace(policy, normalize_observations=spaces.feature_size > 0)
    if ppo.normalize_rewards is None:
        ppo = dataclasses.replace(ppo, normalize_rewards=not ppo.clip_rewards)
    return dataclasses.replace(config, policy=policy, ppo=ppo)


def compiles(config: Config, images: bool) -> bool:
    """Return True if a run is to use kernels. `images` says whether observations contain images.

    Raises ValueError if `runtime.compile` is `on` and another setting excludes kernels.
    """
    runtime = config.runtime
    obstacle = next(
        (
            f"{field} is {value!r}"
            for field, value, allowed in (
                ("runtime.device", runtime.device, ("auto", "cpu")),
                ("runtime.precision", runtime.precision, ("fp32", "fp64")),
                ("plan.gradients", config.plan.gradients, ("ordered",)),
                ("policy.core", config.policy.core, BUILT_IN["core"]),
                ("policy.encoder", config.policy.encoder, ("auto", "mlp", "nature", "impala")),
                ("policy.head", config.policy.head, BUILT_IN["head"]),
                ("policy.distribution", config.policy.distribution, BUILT_IN["distribution"]),
            )
            if value not in allowed
        ),
        None,
    )
    if runtime.compile == "on" and obstacle:
        raise ValueError(
            "runtime.compile is 'on': it needs the CPU, fp32 or fp64, ordered gradients, and a policy whose encoder, core, head and distribution are built in, but "
            f"{obstacle}"
        )
    if images and runtime.compile == "auto" and (runtime.threads > 1 or config.policy.encoder == "impala"):
        return False  # kernels run on one thread, and networks of images are large enough for several; impala's pooling is slow
    return not obstacle and runtime.compile != "off"


def cut_episodes(config: Config) -> str | None:
    """Return a warning if the engine starts new episodes at checkpoints that are too close for unbiased statistics of episodes; otherwise None.

    An episode that is cut counts nowhere, and long ones are cut more often. By renewal theory the mean length of the others is too low by
    about var / (mean · interval), relative to the mean, which is below limit / interval for episodes of at most `limit` steps. For lengths of
    5 and 500 steps in a ratio of 97 to 3, a simulation found 6 % at an interval of 10 limits and 72 % at one.
    """
    every, steps = config.run.checkpoint_every, config.rollout.steps
    limit = restarted_episode_limit(config.env) if every < iterations(config) else None
    if limit is None or every * steps >= _LIMITS * limit:
        return None
    begins = (
        f"env.engine is {config.env.engine!r}, which begins new episodes at every checkpoint, after run.checkpoint_every x rollout.steps = "
        f"{every} x {steps} = {every * steps:,} steps; episodes of {config.env.id} last up to {limit:,} steps, so "
    )
    if every * steps < limit:
        return f"{begins}longer ones never end and have no return: set run.checkpoint_every to {-(-limit // steps)} or more"
    if config.run.evaluate_every is not None:
        return None  # the user has the unbiased numbers
    return (
        f"{begins}long ones are cut more often than short ones and have no return, and length_mean may be up to {limit / (every * steps):.0%} "
        f"too low: set run.checkpoint_every to {-(-_LIMITS * limit // steps)} or more, or set run.evaluate_every"
    )


def _check_plan(config: Config, plan: Plan) -> None:
    """Raise ValueError for options that the plan does not support."""
    settings, threads = config.plan, config.runtime.player_threads
    if settings.gradients == "ddp" and len(plan.training) == 1:
        raise ValueError(
            "plan.gradients is 'ddp': the plan has one trainer, so there is nothing to reduce; use more trainers, or 'ordered' "
            "in a new run"
        )
    if threads not in (None, config.runtime.threads) and set(plan.playing) & set(plan.training):
        raise ValueError(
            f"runtime.player_threads is {threads}: this plan has ranks that play and train, with one number of threads for both; "
            "leave it out in a new run, or let players do nothing else"
        )
    if settings.correction == "vtrace" and not settings.lag:
        raise ValueError("plan.correction is 'vtrace': it corrects for a lag, and plan.lag is 0")
    if settings.preempt is not None and settings.exact:
        raise ValueError(
            f"plan.preempt is {settings.preempt:g}: results then depend on the speed of the ranks; set plan.exact to false to allow that"
        )


def iterations(config: Config) -> int:
    """Return the number of iterations of a resolved config."""
    return config.run.total_steps // (config.env.count * config.rollout.steps)

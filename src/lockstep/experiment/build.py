"""Creating the components of one rank: environments, agent, update and communication."""

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from lockstep.algorithm.agent import Agent
from lockstep.algorithm.collect import Shard, rollout_sizes
from lockstep.algorithm.exchange import Exchange
from lockstep.algorithm.options import UpdateOptions
from lockstep.algorithm.plan import Plan
from lockstep.algorithm.preemption import Preemption
from lockstep.algorithm.update import Update
from lockstep.compiling.build import CompilerFailed
from lockstep.compiling.graphs import cuda_graph
from lockstep.compiling.kernels import InterpretedKernel, MakeKernel, eager
from lockstep.compiling.library import interpreter_problem, load_interpreter
from lockstep.config import Config
from lockstep.envs.catalog import describe_env, make_engine
from lockstep.envs.settings import EnvConfig
from lockstep.envs.spaces import Spaces
from lockstep.experiment.same_ranks import check_same_spaces
from lockstep.group.group import Group
from lockstep.models.policy import Autocast
from lockstep.models.registry import is_registered, registrable_names
from lockstep.models.state import check_state
from lockstep.processes.heartbeat import beat, enter
from lockstep.rollout import Rollout
from lockstep.run.stop import raise_if_asked
from lockstep.runtime.runtime import Runtime

__all__ = ["RankComponents", "build", "make_agent", "restore_agent", "use_kernels_of_run"]

_SPARE = 4
"""Parameters that modules may register per saved tensor, as some are replaced while a module is constructed."""


@dataclass(frozen=True)
class RankComponents:
    """The components of one rank: the group of all ranks that train, and the shards that this rank plays, if any."""

    trainers: Group
    shards: Sequence[Shard]
    exchange: Exchange
    update: Update

    def close(self) -> None:
        """Close environments and pending transfers."""
        self.exchange.close()
        for shard in self.shards:
            shard.engine.close()


def build(config: Config, plan: Plan, runtime: Runtime) -> RankComponents:
    """Create this rank's components of a resolved experiment."""
    env, seed, lag, group = _limit_timeout(config), config.run.seed, config.plan.lag, runtime.group
    shards, training = len(plan.shards), group.rank in plan.training
    separate = lag > 0 or config.runtime.player_device not in (None, config.runtime.device)
    device = runtime.device if training else runtime.player_device
    agent = make_agent(config, device, runtime.autocast(device))
    check_same_spaces(group, agent.spaces, env.id)
    acting = agent
    if training and separate:
        acting = make_agent(config, runtime.player_device, runtime.autocast(runtime.player_device))
    sequence, infos = config.rollout.sequence_length or 1, len(env.info_metrics)
    sizes = rollout_sizes(agent, config.rollout.steps, env.count // shards, sequence, infos)
    preemption = Preemption.make(config.plan, group.finished_count, shards, config.rollout.steps)
    exchange = Exchange(group, plan, agent, acting, Rollout.specs(sizes), lag, separate, preemption)
    exchange.begin(0)
    own_shards = [
        Shard(
            index, make_engine(env, seed, index, shards, runtime.cores), exchange.slots(index), seed, config.ppo.gamma
        )
        for index in plan.played_by(group.rank)
    ]
    counts = [len(plan.trained_by(rank)) for rank in plan.training]
    trainers = group.split(plan.training, counts)
    samples = env.count // shards * config.rollout.steps
    enter("compile")
    if config.runtime.compile == "on":
        _load_interpreter(group.rank)
        for each in (agent, acting):
            each.use_kernels()
    update = Update(
        agent,
        config.ppo,
        trainers if config.plan.exact else group.split(plan.training, [1] * len(counts)),
        plan.trained_by(group.rank),
        seed,
        UpdateOptions(
            share_data=config.plan.share_data,
            vtrace=config.plan.correction == "vtrace",
            fused=not config.plan.exact,
            minibatch_rows=samples // config.ppo.minibatch_count,
            recompute_states=config.rollout.recompute_states,
        ),
        replicate=partial(runtime.replicate, members=plan.training) if config.plan.gradients == "ddp" else None,
        make_kernel=_make_kernel(config, device),
    )
    update.make_kernels(samples, config.rollout.sequence_length or 1)
    enter("start")
    return RankComponents(trainers, own_shards, exchange, update)


def _limit_timeout(config: Config) -> EnvConfig:
    """Return the settings of environments. One that does not answer must be replaced before other ranks give up waiting for this one."""
    env = config.env
    if env.on_fault == "stop":
        return env
    return replace(env, timeout=min(env.timeout, config.runtime.timeout / 2))


def _make_kernel(config: Config, device: torch.device) -> MakeKernel:
    """Return the function that makes the kernels of the update."""
    if device.type == "cuda":
        return cuda_graph
    return InterpretedKernel if config.runtime.compile == "on" else eager


def _load_interpreter(rank: int) -> None:
    """Load the interpreter of kernels. Rank 0 prints one line if it has to be built."""

    def announce() -> None:
        if rank == 0:
            print("building the interpreter of kernels, once; it takes some seconds", file=sys.stderr, flush=True)

    def check() -> None:
        beat()
        raise_if_asked()

    load_interpreter(check, announce)


def make_agent(
    config: Config, device: torch.device | None = None, autocast: Autocast = nullcontext, spaces: Spaces | None = None
) -> Agent:
    """Create an agent with initial weights, on the CPU by default. `spaces` are those of the environment, if they are known already."""
    dtype = torch.float64 if config.runtime.precision == "fp64" else torch.float32
    spaces, rewards, seed = spaces or describe_env(config.env), bool(config.ppo.normalize_rewards), config.run.seed
    device = device or torch.device("cpu")
    return Agent(spaces, config.policy, rewards, seed, dtype, device, autocast, config.curiosity)


def restore_agent(
    config: Config, spaces: Spaces, saved: Mapping[str, Tensor], autocast: Autocast = nullcontext
) -> Agent:
    """Create the agent of a config, and load a saved state.

    Raises ValueError, naming the tensor, if they don't fit. The names and shapes are compared before any memory is allocated: neither
    the config nor the state need come from the same person.
    """
    meta = torch.device("meta")
    try:
        with meta, _limit_parameters(len(saved)):
            expected = make_agent(config, meta, spaces=spaces).state()
    except (RuntimeError, TypeError):
        # a registered encoder, core, head or distribution may read tensors while it is constructed
        if not any(is_registered(kind, name) for kind, name in registrable_names(config.policy)):
            raise
    else:
        check_state(expected, saved)
    agent = make_agent(config, autocast=autocast, spaces=spaces)
    agent.load(saved)
    return agent


def use_kernels_of_run(agent: Agent, config: Config) -> None:
    """Let a loaded agent act by kernels if its run used them, so that evaluations have the same bits on every processor.

    Prints one line if the interpreter of kernels is missing and can't be built: then PyTorch computes the actions.
    """
    if config.runtime.compile != "on" or not agent.supports_kernels:
        return
    problem = interpreter_problem()
    if problem is None:
        try:
            _load_interpreter(0)
        except CompilerFailed as error:
            problem = str(error)
    if problem is None:
        agent.use_kernels()
    else:
        print(f"{problem}, so the policy is computed without kernels: results differ by rounding", file=sys.stderr)


@contextmanager
def _limit_parameters(saved: int) -> Iterator[None]:
    """Raise ValueError as soon as modules that this thread constructs register many more parameters than `saved`."""
    thread, registered = threading.get_ident(), 0

    def check(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        nonlocal registered
        if threading.get_ident() == thread:
            registered += 1
            if registered > _SPARE * (1 + saved):
                raise ValueError(
                    f"the config asks for networks of at least {registered:,} tensors, but {saved:,} are saved"
                )

    handle = register_module_parameter_registration_hook(check)
    try:
        yield
    finally:
        handle.remove()

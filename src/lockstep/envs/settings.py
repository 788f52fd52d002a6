"""The `env` and `rollout` sections of the config."""

import re
from dataclasses import dataclass, field
from typing import Literal

from lockstep.envs.wrapper_calls import parse_wrapper

__all__ = ["EngineName", "EnvConfig", "RolloutConfig"]


EngineName = Literal["auto", "gymnasium", "gymnasium-vector", "gymnasium-async", "envpool", "ale", "pettingzoo"]


@dataclass(frozen=True)
class EnvConfig:
    """Environments of the experiment, and the engine that steps them."""

    id: str = "CartPole-v1"
    """Gymnasium id, the name of a task that lockstep ships, or a parallel environment of PettingZoo such as
    `pettingzoo/butterfly/pistonball_v6`; `lockstep envs` lists them."""
    engine: EngineName = "auto"
    """Engine that steps the environments. `gymnasium`: one after the other in the rank's process; `gymnasium-vector`:
    the vector version of the environment, if it has one; `gymnasium-async`: one process per environment;
    `envpool`: C++; `ale`: Atari games in C++; `pettingzoo`: games of several agents. `auto`: the fastest one measured for this environment and number per
    shard."""
    count: int = 8
    """Number of environments, over all shards. In a game of several agents, each agent is one."""
    per_rank: int | None = None
    """Alternative to `count`: number of environments per rank of the run that creates the experiment (weak scaling)."""
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Keyword arguments of the environment, such as `{continuous: true}` for LunarLander."""
    wrappers: tuple[str, ...] = ()
    """Wrappers around the environment, the innermost first, each written as a call: `FrameStackObservation(stack_size=4)`.
    Names are those of Gymnasium's wrappers, or of classes in `env.module`. Only for the engines `gymnasium` and
    `gymnasium-async`."""
    info_metrics: tuple[str, ...] = ()
    """Names of numbers that the environment returns in `info` at the end of an episode, such as `is_success`. Their means
    over the episodes of an iteration are recorded as the metrics `info/NAME`."""
    module: str | None = None
    """Your own module, which is imported first, also from the current folder. It may register `id` with Gymnasium, and
    parts of the policy. Accepted from the command line or a program, never from a file."""
    threads: int | None = None
    """Threads that step a rank's environments in `envpool` and `ale`. None: the cores of the host, divided among its
    ranks, but one per 64 environments of classic control and toy text. Results do not depend on it, to the bit."""
    timeout: float = 60.0
    """Seconds that one step or reset may take in `gymnasium-async` before the run stops; at resume, seconds for each
    replayed step. After `runtime.timeout` the whole rank counts as hanging: raise that one too. Not part of the experiment: resume accepts
    another value."""
    on_fault: Literal["stop", "replace"] = "stop"
    """Reaction to an environment that raises an error, whose process ends or does not answer within `timeout` (at most half of
    `runtime.timeout`), or that returns NaN, infinity, a wrong shape or a wrong type. `stop`: the run ends. `replace`: the environment is
    created anew, and the run continues without the unfinished episode; from then on it can't be reproduced from its config alone. Needs
    the engine `gymnasium-async`, which `auto` then selects. Resume accepts another value."""
    max_faults: int = 10
    """Maximum number of faults per shard and hour with `on_fault: replace`. The next fault ends the run."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 1_000_000:
            raise ValueError(f"env.count is {self.count}: it must be between 1 and 1,000,000")
        if self.per_rank is not None and self.per_rank < 1:
            raise ValueError(f"env.per_rank is {self.per_rank}: it must be at least 1")
        if self.threads is not None and not 1 <= self.threads <= 4096:
            raise ValueError(f"env.threads is {self.threads}: it must be between 1 and 4096")
        for wrapper in self.wrappers:
            parse_wrapper(wrapper)
        if self.wrappers and self.engine not in ("auto", "gymnasium", "gymnasium-async"):
            advice = "leave them out" if self.engine == "pettingzoo" else "use 'gymnasium' or 'gymnasium-async'"
            raise ValueError(f"env.engine is {self.engine!r}, which can't apply env.wrappers; {advice}")
        if self.on_fault == "replace" and self.engine not in ("auto", "gymnasium-async"):
            advice = "leave it out" if self.engine == "pettingzoo" else "use 'gymnasium-async'"
            raise ValueError(
                "env.on_fault is 'replace': it needs an engine with a process per environment, 'gymnasium-async', but env.engine is "
                f"{self.engine!r}; {advice}"
            )
        if not 1 <= self.max_faults <= 1_000_000:
            raise ValueError(f"env.max_faults is {self.max_faults}: it must be between 1 and 1,000,000")
        for name in self.info_metrics:
            if not re.fullmatch(r"[\w./-]{1,80}", name):
                raise ValueError(f"env.info_metrics has {name!r:.90}: a name must be 1 to 80 of A-Z a-z 0-9 . _ / -")
            if self.info_metrics.count(name) > 1:
                raise ValueError(f"env.info_metrics has {name!r} twice")
        if not 0 < self.timeout <= 1e6:
            raise ValueError(f"env.timeout is {self.timeout}: it must be above 0 and at most 1e6 seconds")


@dataclass(frozen=True)
class RolloutConfig:
    """Steps and sequences that are collected in one iteration."""

    steps: int = 256
    """Steps that every environment takes in one iteration. Usually 16 to 2048."""
    sequence_length: int | None = None
    """Steps through which gradients are propagated back, if the policy has memory (`policy.core`). Minibatches consist of
    such sequences, each with its initial state. None: the largest divisor of `steps` up to 32. Usually 8 to 128."""
    recompute_states: bool = False
    """Recompute the initial states of sequences in every epoch with the current weights, if the policy has memory (as
    after the burn-in of Kapturowski et al. 2019, R2D2). Off: use the states stored while collecting."""

    def __post_init__(self) -> None:
        if self.sequence_length is not None and self.sequence_length < 1:
            raise ValueError(f"rollout.sequence_length is {self.sequence_length}: it must be at least 1")
        if not 1 <= self.steps <= 1_000_000:
            raise ValueError(f"rollout.steps is {self.steps}: it must be between 1 and 1,000,000")

"""The `env` and `rollout` sections of the config."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["EngineName", "EnvConfig", "RolloutConfig"]


EngineName = Literal["auto", "gymnasium", "gymnasium-vector", "gymnasium-async", "envpool", "ale"]


@dataclass(frozen=True)
class EnvConfig:
    """The environments."""

    id: str = "CartPole-v1"
    """Gymnasium id, or the name of a task that lockstep ships; `lockstep envs` lists them."""
    engine: EngineName = "auto"
    """What steps them. `gymnasium`: one after the other in the rank's process; `gymnasium-vector`: Gymnasium's own batched
    version, where it has one; `gymnasium-async`: one process each; `envpool`: C++; `ale`: Atari games, in C++. `auto`: the fastest
    one measured for this environment and number per shard."""
    count: int = 8
    """Number of environments, over all shards."""
    per_rank: int | None = None
    """Another spelling of `count`: environments per rank of the run that first creates the experiment (weak scaling)."""
    options: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Keyword arguments of the environment, such as `{continuous: true}` for LunarLander."""
    module: str | None = None
    """A module of yours, imported first, also from the current folder: it may register `id` with Gymnasium, and cores and encoders.
    Only taken from the command line or a program, never from a file."""
    threads: int | None = None
    """Threads that step a rank's environments in `envpool` and `ale`. None: the host's cores, dealt out among its ranks. The bits do not
    depend on it."""
    timeout: float = 60.0
    """Seconds that one step or reset may take in `gymnasium-async` before the run stops. A replay at resume has them for each of its steps.
    Not part of the experiment: resume takes another value."""

    def __post_init__(self) -> None:
        if not 1 <= self.count <= 1_000_000:
            raise ValueError(f"env.count is {self.count}: it must be between 1 and 1,000,000")
        if self.per_rank is not None and self.per_rank < 1:
            raise ValueError(f"env.per_rank is {self.per_rank}: it must be at least 1")
        if self.threads is not None and not 1 <= self.threads <= 4096:
            raise ValueError(f"env.threads is {self.threads}: it must be between 1 and 4096")
        if not 0 < self.timeout <= 1e6:
            raise ValueError(f"env.timeout is {self.timeout}: it must be above 0 and at most 1e6 seconds")


@dataclass(frozen=True)
class RolloutConfig:
    """What is collected in one iteration."""

    steps: int = 128
    """Steps that every environment takes in one iteration. Usually 16 to 2048."""
    sequence_length: int | None = None
    """With memory (`policy.core`): steps through which gradients are propagated back; minibatches are made of such sequences, each with
    the state that it started from. None: the largest divisor of `steps` up to 32. Usually 8 to 128."""
    recompute_states: bool = False
    """With memory: make the states that sequences start from anew in every epoch, with the weights of then (as after the burn-in of
    Kapturowski et al. 2019, R2D2). Off: keep those noted while collecting."""

    def __post_init__(self) -> None:
        if self.sequence_length is not None and self.sequence_length < 1:
            raise ValueError(f"rollout.sequence_length is {self.sequence_length}: it must be at least 1")
        if not 1 <= self.steps <= 1_000_000:
            raise ValueError(f"rollout.steps is {self.steps}: it must be between 1 and 1,000,000")

"""Workloads that other PPO implementations support too, for comparisons of speed: 8 environments x 256 steps, two 64x64 tanh networks, Adam."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ENVIRONMENTS", "PEERS", "PLAIN", "STEPS", "WORKLOADS", "Peer", "Workload"]

ENVIRONMENTS = 8
STEPS = 256
PLAIN = (
    *("--ppo.learning-rate", "3e-4", "--ppo.learning-rate-kl", "none", "--ppo.gamma", "0.99", "--policy.log-std", "0"),
    *("--policy.no-normalize-observations", "--ppo.no-normalize-rewards", "--ppo.no-recompute-advantages"),
)
"""Flags that turn off features that other implementations do not have by default."""


@dataclass(frozen=True)
class Workload:
    """Settings in which the workloads differ."""

    env_id: str
    epochs: int
    minibatches: int
    entropy: float
    updates: int
    """Default number of updates of one run, chosen so that it takes a few seconds."""
    memory: int = 0
    """Size of the LSTMs, one for the policy and one for the critic; 0 means no memory."""

    def flags(self, environments: int = ENVIRONMENTS, steps: int = STEPS) -> list[str]:
        """Return the workload as flags of `lockstep train`, with `PLAIN`. All other settings have their defaults."""
        sizes = ["--env.count", str(environments), "--rollout.steps", str(steps)]
        update = ["--ppo.epochs", str(self.epochs), "--ppo.minibatches", str(self.minibatches)]
        memory = ["--policy.core", "lstm", "--policy.core-size", str(self.memory)] if self.memory else []
        return ["--env", self.env_id, *sizes, *update, "--ppo.entropy", str(self.entropy), *memory, *PLAIN]

    def command(self, peer: "Peer", interpreter: str, updates: int) -> list[str]:
        """Return the command that runs the workload with a peer."""
        options = {
            "env": self.env_id,
            "environments": ENVIRONMENTS,
            "steps": STEPS,
            "updates": updates,
            "epochs": self.epochs,
            "minibatches": self.minibatches,
            "entropy": self.entropy,
            **({"memory": self.memory} if self.memory else {}),
        }
        return [interpreter, str(peer.program), *(f"--{name}={value}" for name, value in options.items())]


WORKLOADS: Mapping[str, Workload] = {
    "cartpole": Workload("CartPole-v1", 4, 4, 0.01, 60),
    "lunarlander": Workload("LunarLander-v3", 4, 4, 0.01, 40),
    "reacher": Workload("Reacher-v5", 10, 32, 0.0, 16),
    "humanoidstandup": Workload("HumanoidStandup-v5", 10, 32, 0.0, 12),
    "memory": Workload("CartPole-v1", 4, 4, 0.01, 20, memory=128),
}


@dataclass(frozen=True)
class Peer:
    """Other implementation of PPO that lockstep is compared with."""

    name: str
    module: str
    package: str
    """Name of the package in PyPI."""
    recurrent: bool = False
    """True if the peer runs only the workloads with memory, False if it runs only those without."""

    @property
    def program(self) -> Path:
        """Path of the script that runs the workload. It does not import lockstep, so that any interpreter can run it."""
        return Path(__file__).parent / "peers" / f"run_{self.module}.py"


PEERS = (
    Peer("Stable-Baselines3", "stable_baselines3", "stable-baselines3"),
    Peer("skrl", "skrl", "skrl"),
    Peer("sb3-contrib", "sb3_contrib", "sb3-contrib", recurrent=True),
)
"""Implementations that lockstep is compared with."""

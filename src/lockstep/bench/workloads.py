"""Works that others can do too, so that speeds can be compared: 8 environments of 256 steps, two tanh networks of 64x64, Adam."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ENVIRONMENTS", "PEERS", "STEPS", "WORKS", "Peer", "Work"]

ENVIRONMENTS = 8
STEPS = 256


@dataclass(frozen=True)
class Work:
    """What differs between the works."""

    env_id: str
    epochs: int
    minibatches: int
    entropy: float
    updates: int
    """Of one run, so that it takes some seconds."""
    memory: int = 0
    """Width of an LSTM, one for the policy and one for the critic; 0: none."""

    def flags(self, environments: int = ENVIRONMENTS, steps: int = STEPS) -> list[str]:
        """As flags of `lockstep train`; all else is as in its defaults."""
        sizes = ["--env.count", str(environments), "--rollout.steps", str(steps)]
        update = ["--ppo.epochs", str(self.epochs), "--ppo.minibatches", str(self.minibatches)]
        memory = ["--policy.core", "lstm", "--policy.core-size", str(self.memory)] if self.memory else []
        return ["--env", self.env_id, *sizes, *update, "--ppo.entropy", str(self.entropy), *memory]

    def command(self, peer: "Peer", interpreter: str, updates: int) -> list[str]:
        """The program that does the same with a peer."""
        words = {
            "env": self.env_id,
            "environments": ENVIRONMENTS,
            "steps": STEPS,
            "updates": updates,
            "epochs": self.epochs,
            "minibatches": self.minibatches,
            "entropy": self.entropy,
            **({"memory": self.memory} if self.memory else {}),
        }
        return [interpreter, str(peer.program), *(f"--{name}={value}" for name, value in words.items())]


WORKS: Mapping[str, Work] = {
    "cartpole": Work("CartPole-v1", 4, 4, 0.01, 60),
    "lunarlander": Work("LunarLander-v3", 4, 4, 0.01, 40),
    "reacher": Work("Reacher-v5", 10, 32, 0.0, 16),
    "humanoidstandup": Work("HumanoidStandup-v5", 10, 32, 0.0, 12),
    "memory": Work("CartPole-v1", 4, 4, 0.01, 20, memory=128),
}


@dataclass(frozen=True)
class Peer:
    """Another implementation of PPO."""

    name: str
    module: str
    package: str
    """As pip knows it."""
    remembers: bool = False
    """Whether it is for the works with memory, instead of the others."""

    @property
    def program(self) -> Path:
        """A script that imports nothing of lockstep, so that any interpreter can run it."""
        return Path(__file__).parent / "peers" / f"run_{self.module}.py"


PEERS = (
    Peer("Stable-Baselines3", "stable_baselines3", "stable-baselines3"),
    Peer("skrl", "skrl", "skrl"),
    Peer("sb3-contrib", "sb3_contrib", "sb3-contrib", remembers=True),
)
"""Those that are compared with."""

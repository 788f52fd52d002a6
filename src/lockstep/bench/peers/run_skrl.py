"""PPO of skrl on one of the compared workloads."""

import argparse
from typing import Any

import gymnasium as gym
import skrl
import torch
from skrl.agents.torch.ppo import PPO, PPO_CFG
from skrl.envs.wrappers.torch import wrap_env
from skrl.memories.torch import RandomMemory
from skrl.models.torch import CategoricalMixin, DeterministicMixin, GaussianMixin, Model
from skrl.trainers.torch import SequentialTrainer
from torch import nn


class Categorical(CategoricalMixin, Model):
    """Policy for discrete actions."""

    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        CategoricalMixin.__init__(self)
        self.net = network(self.num_observations, self.num_actions)

    def compute(self, inputs: Any, role: str) -> Any:
        """Return the logits."""
        return self.net(inputs["observations"]), {}


class Gaussian(GaussianMixin, Model):
    """Policy for continuous actions."""

    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self)
        self.net = network(self.num_observations, self.num_actions)
        self.log_std = nn.Parameter(torch.zeros(self.num_actions))

    def compute(self, inputs: Any, role: str) -> Any:
        """Return the means, and the logarithm of the standard deviations."""
        return self.net(inputs["observations"]), {"log_std": self.log_std}


class Value(DeterministicMixin, Model):
    """Critic."""

    def __init__(self, **spaces: Any) -> None:
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.net = network(self.num_observations, 1)

    def compute(self, inputs: Any, role: str) -> Any:
        """Return the values."""
        return self.net(inputs["observations"]), {}


class Marked(PPO):
    """PPO that prints the number of steps after every update."""

    batch, taken = 0, 0

    def update(self, *positional: Any, **named: Any) -> Any:
        """Call the update of PPO and print the number of steps."""
        result = super().update(*positional, **named)
        self.taken += self.batch
        print("steps", self.taken, flush=True)
        return result


def network(inputs: int, outputs: int) -> nn.Sequential:
    """Create a network with two hidden layers of 64 units."""
    return nn.Sequential(nn.Linear(inputs, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, outputs))


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env")
    parser.add_argument("--entropy", type=float)
    for name in ("environments", "steps", "updates", "epochs", "minibatches"):
        parser.add_argument(f"--{name}", type=int)
    work = parser.parse_args()
    torch.set_num_threads(1)
    skrl.logger.setLevel("ERROR")
    envs = wrap_env(gym.make_vec(work.env, num_envs=work.environments, vectorization_mode="sync"), verbose=False)
    spaces = {"observation_space": envs.observation_space, "action_space": envs.action_space, "device": "cpu"}
    discrete = isinstance(envs.action_space, gym.spaces.Discrete)
    settings = PPO_CFG(
        rollouts=work.steps,
        learning_epochs=work.epochs,
        mini_batches=work.minibatches,
        learning_rate=3e-4,
        grad_norm_clip=0.5,
        ratio_clip=0.2,
        value_loss_scale=0.5,
        entropy_loss_scale=work.entropy,
    )
    settings.experiment.write_interval = 0
    settings.experiment.checkpoint_interval = 0
    agent = Marked(
        models={"policy": Categorical(**spaces) if discrete else Gaussian(**spaces), "value": Value(**spaces)},
        memory=RandomMemory(memory_size=work.steps, num_envs=work.environments, device="cpu"),
        cfg=settings,
        **spaces,
    )
    agent.batch = work.environments * work.steps
    timesteps = {"timesteps": work.steps * work.updates, "headless": True, "disable_progressbar": True}
    SequentialTrainer(cfg=timesteps, env=envs, agents=agent).train()


if __name__ == "__main__":
    main()

"""PPO of Stable-Baselines3 on one of the compared workloads."""

import argparse
from typing import Any

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv


class Marks(BaseCallback):
    """Callback that prints the number of steps after every update, that is, when the next rollout starts."""

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            print("steps", self.num_timesteps, flush=True)

    def _on_step(self) -> bool:
        return True


def work_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Parse the command line of a workload."""
    parser.add_argument("--env")
    parser.add_argument("--entropy", type=float)
    for name in ("environments", "steps", "updates", "epochs", "minibatches"):
        parser.add_argument(f"--{name}", type=int)
    return parser.parse_args()


def train(algorithm: type[OnPolicyAlgorithm], policy: str, work: argparse.Namespace, **options: Any) -> None:
    """Train with the settings that all workloads share."""
    torch.set_num_threads(1)
    # by default make_vec_env creates environments with a render mode, which halves the speed of LunarLander
    envs = make_vec_env(work.env, work.environments, 1, env_kwargs={"render_mode": None}, vec_env_cls=DummyVecEnv)
    batch = work.environments * work.steps
    agent = algorithm(
        policy,
        envs,
        n_steps=work.steps,
        n_epochs=work.epochs,
        batch_size=batch // work.minibatches,
        ent_coef=work.entropy,
        device="cpu",
        seed=1,
        **options,
    )
    agent.learn(batch * work.updates, callback=Marks())
    print("steps", agent.num_timesteps, flush=True)


if __name__ == "__main__":
    train(PPO, "MlpPolicy", work_of(argparse.ArgumentParser()))

"""Train PPO of Stable-Baselines3 with the hyperparameters of rl-baselines3-zoo until the mean return of 20 training episodes reaches a goal.

threshold.py runs this program with an interpreter that has stable-baselines3. Prints one line of JSON.
"""

import argparse
import json
import statistics
import time

import gymnasium as gym
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize


def linear(start):
    """Return a schedule that decreases linearly from `start` to 0."""
    return lambda remaining: start * remaining


TASKS = {
    "CartPole-v1": (
        8,
        100_000,
        False,
        {
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "learning_rate": linear(1e-3),
            "clip_range": linear(0.2),
        },
    ),
    "Pendulum-v1": (
        4,
        100_000,
        False,
        {
            "n_steps": 1024,
            "gae_lambda": 0.95,
            "gamma": 0.9,
            "n_epochs": 10,
            "learning_rate": 1e-3,
            "clip_range": 0.2,
            "use_sde": True,
            "sde_sample_freq": 4,
        },
    ),
    "Reacher-v5": (
        1,
        1_000_000,
        True,
        {
            "n_steps": 512,
            "batch_size": 32,
            "gamma": 0.9,
            "learning_rate": 0.000104019,
            "ent_coef": 7.52585e-08,
            "clip_range": 0.3,
            "n_epochs": 5,
            "gae_lambda": 1.0,
            "max_grad_norm": 0.9,
            "vf_coef": 0.950368,
        },
    ),
    "LunarLander-v3": (
        16,
        1_000_000,
        False,
        {
            "n_steps": 1024,
            "batch_size": 64,
            "gae_lambda": 0.98,
            "gamma": 0.999,
            "n_epochs": 4,
            "ent_coef": 0.01,
        },
    ),
}
"""Number of environments, budget in steps, normalization of observations and rewards, and arguments of PPO, by environment."""


class Goal(BaseCallback):
    """Callback that stops training at the goal or at the time limit."""

    def __init__(self, goal, seconds):
        super().__init__()
        self.goal, self.deadline = goal, time.monotonic() + seconds
        self.returns, self.reached = [], False

    def _on_step(self):
        self.returns += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        self.returns = self.returns[-20:]
        self.reached = len(self.returns) == 20 and statistics.mean(self.returns) >= self.goal
        return not self.reached and time.monotonic() < self.deadline


def main():
    """Train one environment and print whether the goal was reached."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--env")
    parser.add_argument("--goal", type=float)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seconds", type=float)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    count, steps, normalize, settings = TASKS[arguments.env]
    # with an id, make_vec_env creates environments with rendering, which halves the speed of LunarLander
    envs = make_vec_env(lambda: gym.make(arguments.env), count, arguments.seed)
    if normalize:
        envs = VecNormalize(envs, gamma=settings["gamma"])
    goal = Goal(arguments.goal, arguments.seconds)
    agent = PPO("MlpPolicy", envs, device="cpu", seed=arguments.seed, **settings)
    agent.learn(steps, callback=goal)
    print(json.dumps({"reached": goal.reached, "steps": agent.num_timesteps}), flush=True)


if __name__ == "__main__":
    main()

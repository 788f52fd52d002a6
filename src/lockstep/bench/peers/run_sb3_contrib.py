"""RecurrentPPO of sb3-contrib on one of the works that are compared."""

import argparse

import torch
from run_stable_baselines3 import Marks, work_of
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv


def main() -> None:
    """Trains."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--memory", type=int)
    work = work_of(parser)
    torch.set_num_threads(1)
    envs = make_vec_env(work.env, work.environments, 1, env_kwargs={"render_mode": None}, vec_env_cls=DummyVecEnv)
    batch = work.environments * work.steps
    agent = RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        n_steps=work.steps,
        n_epochs=work.epochs,
        batch_size=batch // work.minibatches,
        ent_coef=work.entropy,
        policy_kwargs={"lstm_hidden_size": work.memory},
        device="cpu",
        seed=1,
    )
    agent.learn(batch * work.updates, callback=Marks())
    print("steps", agent.num_timesteps, flush=True)


if __name__ == "__main__":
    main()

"""Train Pong with Stable-Baselines3 and the settings of the preset `atari`; print a line after every iteration. `pong.py` calls this script.

    python benchmarks/pong_sb3.py ITERATIONS

It needs stable-baselines3, ale-py and opencv-python-headless, but not lockstep. PyTorch uses all cores.
"""

import sys

import ale_py  # noqa: F401  # registers the environments
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack


class Marks(BaseCallback):
    """Callback that prints a line after every iteration."""

    def _on_rollout_start(self) -> None:
        if self.num_timesteps:
            print("iteration", flush=True)

    def _on_step(self) -> bool:
        return True


environment = VecFrameStack(make_atari_env("ALE/Pong-v5", 8, seed=0, env_kwargs={"frameskip": 1}), 4)
model = PPO(
    "CnnPolicy",
    environment,
    learning_rate=2.5e-4,
    clip_range=0.1,
    ent_coef=0.01,
    n_steps=128,
    batch_size=256,
    n_epochs=4,
    device="cpu",
)
model.learn(1024 * int(sys.argv[1]), callback=Marks())
print("iteration", flush=True)

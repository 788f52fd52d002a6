"""Train and evaluate one run of Stable-Baselines3 with the settings of rl-baselines3-zoo, and print it as JSON.

sb3.py runs this program with the interpreter that has stable-baselines3, sb3-contrib and rl_zoo3.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from contextlib import redirect_stdout
from importlib.metadata import version
from pathlib import Path

import rl_zoo3
import torch
import yaml
from records import machine, rounded, summary, thin_curve, thresholds
from rl_zoo3.exp_manager import ExperimentManager
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import sync_envs_normalization

PACKAGES = ("stable-baselines3", "sb3-contrib", "rl_zoo3", "torch", "numpy", "gymnasium")
EVALUATION_SEED = 1_000_000
"""Added to the seed of the run for the episodes of the evaluation."""


class Episodes(BaseCallback):
    """Callback that records steps, seconds and return at the end of each episode."""

    def __init__(self):
        super().__init__()
        self.start = time.perf_counter()
        self.ended = []

    def _on_step(self):
        for info in self.locals["infos"]:
            if "episode" in info:
                self.ended.append((self.num_timesteps, time.perf_counter() - self.start, float(info["episode"]["r"])))
        return True

    def windows(self):
        """Return steps, seconds and the mean return of the last 20 episodes, after each episode."""
        returns = [total for _, _, total in self.ended]
        return [
            (steps, seconds, statistics.fmean(returns[place - 19 : place + 1]) if place >= 19 else None)
            for place, (steps, seconds, _) in enumerate(self.ended)
        ]


def read_settings(algorithm, name):
    """Return the hyperparameters that the installed rl_zoo3 has for a task."""
    path = Path(rl_zoo3.__file__).parent / "hyperparams" / f"{algorithm}.yml"
    return yaml.safe_load(path.read_text())[name]


def evaluate(manager, model, episodes, deterministic):
    """Play episodes with the normalization of training, and return the statistics of their unscaled returns."""
    env = manager.create_envs(1, eval_env=True, no_log=True)
    if manager.normalize:
        sync_envs_normalization(model.get_env(), env)
    env.seed(EVALUATION_SEED + manager.seed)
    returns, _ = evaluate_policy(model, env, episodes, deterministic=deterministic, return_episode_rewards=True)
    env.close()
    return summary([float(value) for value in returns])


def run(arguments, folder):
    """Train and evaluate, and return the fields of the result."""
    settings = read_settings(arguments.algorithm, arguments.settings)
    config = Path(folder, "settings.yml")
    config.write_text(yaml.safe_dump({arguments.env: settings}))
    manager = ExperimentManager(
        argparse.Namespace(),
        arguments.algorithm,
        arguments.env,
        folder,
        n_timesteps=arguments.steps,
        env_kwargs=json.loads(arguments.options),
        eval_env_kwargs=json.loads(arguments.options),
        config=str(config),
        seed=arguments.seed,
        device="cpu",
        verbose=0,
    )
    model, _ = manager.setup_experiment()
    episodes = Episodes()
    model.learn(arguments.steps, callback=episodes)
    seconds = time.perf_counter() - episodes.start
    return {
        "settings": settings,
        "versions": {name: version(name) for name in PACKAGES},
        **machine(),
        "steps": model.num_timesteps,
        "seconds": round(seconds, 1),
        "steps_per_second": round(model.num_timesteps / seconds),
        "thresholds": thresholds(episodes.windows(), arguments.thresholds),
        "curve": thin_curve([(steps, 1, rounded(total)) for steps, _, total in episodes.ended]),
        "digest": None,
        "evaluation": {
            kind: evaluate(manager, model, arguments.episodes, kind == "deterministic")
            for kind in ("deterministic", "sampled")
        },
    }


def main():
    """Print the result as the last line."""
    parser = argparse.ArgumentParser()
    for name in ("--algorithm", "--env", "--settings"):
        parser.add_argument(name)
    for name in ("--steps", "--seed", "--episodes"):
        parser.add_argument(name, type=int)
    parser.add_argument("--options", default="{}")
    parser.add_argument("--thresholds", type=float, nargs="+")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        result = run(arguments, folder)
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

"""Measure the returns of uniformly random actions over 100 episodes for every environment of the tables.

    python benchmarks/learning/random_scores.py [TABLE …]

Writes random_scores.json, the 0 of normalized scores. Environments that the file has already are kept.
"""

import argparse
import json
from pathlib import Path

import yaml
from records import Record, summary, write_record
from tasks import read_table, table_names

from lockstep.config.compose import load
from lockstep.envs.catalog import make_one

PATH = Path(__file__).parent / "random_scores.json"
EPISODES = 100


def measure(env_id: str, options: dict[str, object]) -> Record:
    """Play the episodes and return the statistics of their returns."""
    flags = {"env": {"id": env_id, "options": yaml.safe_dump(options, default_flow_style=True)}}
    env = make_one(load(None, None, flags).env)
    env.action_space.seed(0)
    returns = []
    for seed in range(EPISODES):
        env.reset(seed=seed)
        total, done = 0.0, False
        while not done:
            _, reward, terminated, truncated, _ = env.step(env.action_space.sample())
            total, done = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    statistics = summary(returns)
    del statistics["returns"]
    return statistics


def main() -> None:
    """Measure the environments that the file lacks, and write it after each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=table_names())
    scores = json.loads(PATH.read_text()) if PATH.exists() else {}
    for name in parser.parse_args().tables:
        for task in read_table(name).tasks.values():
            if task.environment not in scores:
                scores[task.environment] = measure(task.env, task.options)
                write_record(PATH, dict(sorted(scores.items())))
                print(task.environment, scores[task.environment], flush=True)


if __name__ == "__main__":
    main()

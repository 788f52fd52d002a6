"""Evaluation of a checkpoint as during training."""

import json
from pathlib import Path
from statistics import fmean, stdev

import gymnasium as gym
import pytest

import lockstep
from lockstep.randomness import seed_of
from lockstep.report import evaluate, training_evaluation
from lockstep.report.training_evaluation import evaluate_checkpoint
from lockstep.run.folder import RunFolder

EPISODES = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> lockstep.Run:
    folder = str(tmp_path_factory.mktemp("runs"))
    options = {"run.progress": "off", "run.loggers": [], "run.checkpoint_every": 1, "runtime.compile": "off"}
    options |= {"rollout.steps": 32, "ppo.minibatches": 1, "plan.shards": 1}
    return lockstep.train("cartpole", total_steps=768, out=folder, name="first", **options)


def returns(run: lockstep.Run, seeds: list[int]) -> list[float]:
    """Play the episodes without any code of lockstep but the policy."""
    policy, env, totals = run.load(iteration=2), gym.make("CartPole-v1"), []
    for seed in seeds:
        policy.begin()
        (observation, _), total, done = env.reset(seed=seed), 0.0, False
        while not done:
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
            total, done = total + float(reward), terminated or truncated
        totals.append(total)
    env.close()
    return totals


def test_results_equal_those_of_a_plain_loop(run: lockstep.Run) -> None:
    row = evaluate_checkpoint(run.folder, 2, EPISODES)
    found = returns(run, [seed_of(1, "training-evaluation", episode) for episode in range(EPISODES)])
    names = ("return_mean", "return_std", "return_min", "return_max", "length_mean", "episodes")
    expected = [fmean(found), stdev(found), min(found), max(found), fmean(found), EPISODES]
    assert [row[name] for name in names] == pytest.approx(expected)
    metrics = run.metrics[1]
    assert [row[name] for name in ("iteration", "env_steps", "seconds", "digest")] == [
        metrics[name] for name in ("iteration", "env_steps", "seconds", "digest")
    ]
    assert row["sampled_return_mean"] != row["return_mean"]


def test_results_depend_only_on_weights_and_config(run: lockstep.Run) -> None:
    rows = [evaluate_checkpoint(run.folder, iteration, EPISODES) for iteration in (2, 1, 2)]
    assert json.dumps(rows[0]) == json.dumps(rows[2]) != json.dumps(rows[1])


def test_episodes_beyond_the_number_of_environments_are_played_later(
    run: lockstep.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = evaluate_checkpoint(run.folder, 2, EPISODES)
    monkeypatch.setattr(training_evaluation, "_MAX_ENVS", 2)
    other = evaluate_checkpoint(run.folder, 2, EPISODES)
    names = ("return_mean", "return_std", "return_min", "length_mean", "episodes")
    assert [other[name] for name in names] == [row[name] for name in names]


def test_one_episode_has_no_deviation(run: lockstep.Run) -> None:
    row = evaluate_checkpoint(run.folder, 2, 1)
    assert row["return_std"] is row["sampled_return_std"] is None


def test_endless_episode_is_cut_off(run: lockstep.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluate, "MAX_STEPS", 4)
    assert evaluate_checkpoint(run.folder, 2, EPISODES)["length_mean"] == 4


def test_broken_checkpoint_is_reported_in_one_line(run: lockstep.Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"iteration is 9: .* has checkpoints of 1, 2, 3"):
        evaluate_checkpoint(RunFolder.open(run.path), 9, EPISODES)

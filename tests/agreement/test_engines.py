"""Engines that step the same episodes give the same bits, in the process of the rank and in processes of their own, on every plan."""

import pytest

WORDS = (
    *("train", "--env", "CartPole-v1", "--env.count", 8, "--plan.shards", 4, "--rollout.steps", 32, "--ppo.epochs", 2),
    *("--run.progress", "off", "--run.checkpoint-every", 2),
)
ITERATIONS = 4
STEPS = ("--total-steps", 8 * 32 * ITERATIONS)
REPLACE = ("--env.on-fault", "replace")
CASES = [
    ("--env.engine", "gymnasium-async", "--ranks", 1),
    (*REPLACE, "--ranks", 2),
    (*REPLACE, "--plan", "one-trainer", "--ranks", 3),
    (*REPLACE, "--plan", "2:1", "--ranks", 3, "--runtime.backend", "gloo"),
]


@pytest.fixture
def whole(run_cli) -> str:
    """Train with environments in the process of the rank."""
    done = run_cli(*WORDS, *STEPS, "--env.engine", "gymnasium", "--ranks", 1, "--name", "whole")
    assert done.rc == 0, done
    return "whole"


def test_processes_per_environment_give_the_same_bits(run_cli, same, whole: str) -> None:
    for number, words in enumerate(CASES):
        done = run_cli(*WORDS, *STEPS, *words, "--name", f"run{number}")
        assert done.rc == 0, done
        same(whole, f"run{number}", ITERATIONS)

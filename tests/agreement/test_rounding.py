"""Plans with `exact: false` and DDP: weights after one update are equal up to rounding."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

pytestmark = pytest.mark.slow

CASES = {
    "cartpole": ("--env", "CartPole-v1"),
    "pendulum": ("--env", "Pendulum-v1", "--policy.normalize-observations", "--ppo.normalize-rewards"),
}
WORDS = ("--env.count", 8, "--rollout.steps", 64, "--total-steps", 8 * 64, "--plan.shards", 4, "--run.progress", "off")
"""One iteration of 4 epochs of 4 minibatches."""


def train(run_cli, case: str, name: str, *more: object) -> None:
    rc, out, err = run_cli("train", *CASES[case], *WORDS, "--name", name, *more)
    assert rc == 0, out + err


def distance(folder: Path, a: str, b: str) -> float:
    """Return the largest difference between the numbers of two agents, relative to the number where it is above 1."""
    tensors_a, tensors_b = (
        load_file(folder / "runs" / name / "checkpoints/00000001/agent.safetensors") for name in (a, b)
    )
    assert tensors_a.keys() == tensors_b.keys()
    return max(
        ((tensors_a[name] - tensors_b[name]).abs() / tensors_a[name].abs().clamp_min(1)).max().item()
        for name in tensors_a
    )


@pytest.mark.parametrize(
    ("case", "more"),
    [
        ("cartpole", ()),
        ("pendulum", ("--plan.share-data",)),
        pytest.param("pendulum", (), marks=pytest.mark.exhaustive),
        pytest.param("cartpole", ("--plan.share-data",), marks=pytest.mark.exhaustive),
    ],
)
def test_fused_shards_give_the_same_weights_up_to_rounding(
    run_cli, tmp_path: Path, case: str, more: tuple[object, ...]
) -> None:
    train(run_cli, case, "exact", *more)
    for ranks in (1, 2):
        name = f"fused{ranks}"
        train(run_cli, case, name, "--plan.exact", "false", "--ranks", ranks, *more)
        assert 0 < distance(tmp_path, "exact", name) < 1e-5
    train(run_cli, case, "seed", "--seed", 2, *more)
    assert distance(tmp_path, "exact", "seed") > 0.1  # so it does see differences


@pytest.mark.parametrize("case", [pytest.param("cartpole", marks=pytest.mark.exhaustive), "pendulum"])
def test_ddp_gives_the_same_weights_up_to_rounding(run_cli, tmp_path: Path, case: str) -> None:
    train(run_cli, case, "ordered")
    train(run_cli, case, "ddp", "--plan.gradients", "ddp", "--ranks", 2)
    assert 0 < distance(tmp_path, "ordered", "ddp") < 1e-5

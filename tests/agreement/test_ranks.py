"""Bit-identical results for any number of ranks, with torchrun, over the network and with environments in subprocesses."""

import sys

import pytest

pytestmark = pytest.mark.slow

TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")
SHORT = (
    "--rollout.steps",
    32,
    "--ppo.minibatches",
    2,
    "--ppo.epochs",
    2,
    "--run.checkpoint-every",
    3,
    "--run.progress",
    "off",
)
BOTH_MOMENTS = ("--policy.normalize-observations", "--ppo.normalize-rewards")
CASES = {
    "cartpole": ("--env", "CartPole-v1", "--env.engine", "gymnasium-vector"),
    "cartpole-gymnasium": ("--env", "CartPole-v1", "--env.engine", "gymnasium"),
    "cartpole-envpool": ("--env", "CartPole-v1", "--env.engine", "envpool", "--env.count", 16),
    "cartpole-async": ("--env", "CartPole-v1", "--env.engine", "gymnasium-async"),
    "reacher": ("--env", "Reacher-v5", *BOTH_MOMENTS, "--ppo.kl-stop", 0.002),
    "lunarlander": ("--env", "LunarLander-v3", "--policy.shared", "--ppo.surrogate", "kl", "--policy.hidden", 32),
    "pendulum-squashed": ("--env", "Pendulum-v1", "--policy.squash", *BOTH_MOMENTS, "--ppo.policy-epochs", 1),
}
ITERATIONS = 4


def words_of(case: str, name: str, *more: object) -> list[object]:
    words = ["train", *CASES[case], *SHORT, "--plan.shards", 4]
    count = 16 if case == "cartpole-envpool" else 8
    return [*words, "--total-steps", count * 32 * ITERATIONS, "--name", name, *more]


def train(run_cli, case: str, name: str, *more: object, prefix: tuple[str, ...] | None = None) -> None:
    rc, out, err = run_cli(*words_of(case, name, *more), **({"prefix": prefix} if prefix else {}))
    assert rc == 0, out + err


@pytest.mark.parametrize(
    "case",
    [
        "cartpole",
        "cartpole-gymnasium",
        pytest.param("cartpole-envpool", marks=pytest.mark.extra("envpool")),
        pytest.param("reacher", marks=pytest.mark.extra("mujoco")),
        pytest.param("lunarlander", marks=pytest.mark.extra("Box2D")),
        "pendulum-squashed",
    ],
)
def test_one_two_and_four_ranks_give_the_same_bits(run_cli, same, case: str) -> None:
    for ranks in (1, 2, 4):
        cold = case == "cartpole" and ranks == 2  # as users start it: nothing is forked
        train(run_cli, case, f"ranks{ranks}", "--ranks", ranks, prefix=(sys.executable, "-m") if cold else None)
    same("ranks1", "ranks2", ITERATIONS)
    same("ranks1", "ranks4", ITERATIONS)


@pytest.mark.exhaustive  # tests/cli/test_plans.py compares a plan under torchrun
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_torchrun_gives_the_same_bits(run_cli, same, ranks: int) -> None:
    train(run_cli, "cartpole", "own")
    train(run_cli, "cartpole", "torchrun", prefix=(*TORCHRUN, str(ranks), "-m"))
    same("own", "torchrun", ITERATIONS)


def test_network_gives_the_same_bits_as_shared_memory(run_cli, same) -> None:
    train(run_cli, "cartpole", "shared", "--ranks", 2)
    train(run_cli, "cartpole", "gloo", "--ranks", 2, "--runtime.backend", "gloo")
    same("shared", "gloo", ITERATIONS)


@pytest.mark.exhaustive  # test_runtimes.py uses the network under another launcher, and this launcher without the network
def test_network_under_torchrun_gives_the_same_bits(run_cli, same) -> None:
    train(run_cli, "cartpole", "own")
    train(run_cli, "cartpole", "torchrun-gloo", "--runtime.backend", "gloo", prefix=(*TORCHRUN, "2", "-m"))
    same("own", "torchrun-gloo", ITERATIONS)


def test_subprocess_environments_give_the_same_bits(run_cli, same) -> None:
    train(run_cli, "cartpole-gymnasium", "inside")
    train(run_cli, "cartpole-async", "processes", "--ranks", 2)
    rc, out, _ = run_cli("diff", "inside", "processes")
    assert rc == 0
    assert out.startswith(f"identical for {ITERATIONS} iterations")


def test_another_seed_gives_other_bits(run_cli) -> None:
    train(run_cli, "cartpole", "one")
    train(run_cli, "cartpole", "seed", "--seed", 2)
    assert run_cli("diff", "one", "seed").rc == 1
    rc, out, _ = run_cli("diff", "one", "seed")
    assert (rc, out.splitlines()[0]) == (1, "digests differ from iteration 1 on")
    assert "config: run.seed is 1 in A, 2 in B" in out

"""Buffers of a registered encoder: the same bits for any number of ranks, after resuming and with `plan.lag`."""

from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ITERATIONS = 4
MODULE = """
import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

import lockstep


class Bounded(nn.Module):
    def __init__(self, features, images, policy):
        super().__init__()
        self.layer = spectral_norm(nn.Linear(features, 16))
        self.register_buffer("phases", torch.rand(16))
        self.register_buffer("mean", torch.zeros(16))
        self.output_size = 16

    def forward(self, features, images):
        rows = (self.layer(features) + self.phases).sin()
        result = rows - self.mean
        if self.training:
            self.mean.lerp_(rows.detach().mean(0), 0.1)
        return result


lockstep.register_encoder("bounded", Bounded)
"""
WORDS = (
    *("--env", "CartPole-v1", "--env.engine", "gymnasium", "--env.module", "my_parts", "--policy.encoder", "bounded"),
    *("--rollout.steps", 32, "--plan.shards", 4, "--ppo.epochs", 2, "--ppo.minibatches", 2),
    *("--total-steps", 8 * 32 * ITERATIONS, "--run.checkpoint-every", 2, "--run.progress", "off"),
)


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> None:
    (tmp_path / "my_parts.py").write_text(MODULE)


@pytest.mark.parametrize("more", [(), ("--plan.lag", 1)], ids=["coupled", "lag"])
def test_ranks_and_resumed_runs_give_the_same_bits(run_cli, same, more: tuple[object, ...]) -> None:
    for ranks in (1, 2):
        done = run_cli("train", *WORDS, *more, "--name", f"run-{ranks}", "--ranks", ranks)
        assert done.rc == 0, done
    same("runs/run-1", "runs/run-2", ITERATIONS)
    done = run_cli("resume", "runs/run-2", "--iteration", 2, "--env.module", "my_parts", "--ranks", 1)
    assert done.rc == 0, done
    same("runs/run-1", "runs/run-2", ITERATIONS)


def test_players_receive_the_buffers(run_cli, same) -> None:
    for name, plan in (("alone", ("--ranks", 1)), ("apart", ("--ranks", 2, "--plan.kind", "1:1"))):
        done = run_cli("train", *WORDS, *plan, "--name", name)
        assert done.rc == 0, done
    same("runs/alone", "runs/apart", ITERATIONS)


@pytest.mark.parametrize("more", [("--plan.exact", "false"), ("--plan.gradients", "ddp")])
def test_inexact_plans_train_and_resume(run_cli, more: tuple[object, ...]) -> None:
    done = run_cli("train", *WORDS, *more, "--name", "run", "--ranks", 2)
    assert done.rc == 0, done
    digest = run_cli("digest", "runs/run").stdout
    done = run_cli("resume", "runs/run", "--iteration", 2, "--env.module", "my_parts", "--ranks", 2)
    assert done.rc == 0, done
    assert run_cli("digest", "runs/run").stdout == digest


@pytest.mark.parametrize(
    ("line", "problem"), [("nn.Dropout(0.1)", "draws from"), ("nn.BatchNorm1d(16)", "is a BatchNorm1d")]
)
def test_unsupported_modules_are_refused_before_the_run_starts(
    run_cli, tmp_path: Path, line: str, problem: str
) -> None:
    changed = MODULE.replace("self.output_size", f"self.more = {line}\n        self.output_size", 1)
    (tmp_path / "my_parts.py").write_text(changed.replace("result = rows", "result = self.more(rows)"))
    done = run_cli("train", *WORDS, "--ranks", 2)
    assert done.rc == 2, done
    assert done.stderr.count("\n") == 1, done.stderr
    assert "policy.encoder is 'bounded'" in done.stderr
    assert problem in done.stderr
    assert not (tmp_path / "runs").exists()

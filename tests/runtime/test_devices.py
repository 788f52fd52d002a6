"""Tests of the choice of devices, and of training on GPUs, which are skipped without one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from tests.live_runs import digests
from tests.runtime.test_hosts import FakeGroup
from tests.watched import evaluate_rows

from lockstep.algorithm.agent import Agent
from lockstep.group.solo import Solo
from lockstep.models.settings import PolicyConfig
from lockstep.run import stop
from lockstep.runtime.devices import choose_devices
from lockstep.runtime.hosts import HostSlot
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig

CPU = torch.device("cpu")
HOST_SLOT = HostSlot(0, 1, 1)
ALL_RANKS = range(3)
TRAINER, PLAYER, GPU = range(3)
"""Columns of the rows that ranks exchange."""
MIXED = "is 'auto': some hosts have a CUDA device and some do not; use cpu or cuda"


def rank_info_of(rank: int) -> RankInfo:
    return RankInfo(rank, 3, rank, 3)


def test_single_rank_uses_the_cpu() -> None:
    devices = choose_devices(RankInfo(0, 1, 0, 1), RuntimeConfig(device="cpu"), Solo(), HOST_SLOT, [0], [0])
    assert (devices.trainer, devices.player, devices.own_gpus) == (CPU, CPU, False)


@pytest.mark.parametrize(("column", "name"), [(TRAINER, "device"), (PLAYER, "player_device")])
def test_ranks_on_different_kinds_of_devices_are_refused(
    monkeypatch: pytest.MonkeyPatch, column: int, name: str
) -> None:
    monkeypatch.setattr(stop, "_REPORT_SECONDS", 0.0)
    config, others = RuntimeConfig(device="cpu"), {1: {column: 1}}
    with pytest.raises(ValueError, match=f"runtime.{name} {MIXED}"):
        choose_devices(rank_info_of(0), config, FakeGroup(0, 3, others), HOST_SLOT, ALL_RANKS, ALL_RANKS)
    with pytest.raises(SystemExit) as caught:
        choose_devices(rank_info_of(2), config, FakeGroup(2, 3, others), HOST_SLOT, ALL_RANKS, ALL_RANKS)
    assert caught.value.code == 2


def test_ranks_that_do_not_train_may_have_no_gpu() -> None:
    config, others = RuntimeConfig(device="cpu"), {1: {TRAINER: -1, PLAYER: 0}, 2: {TRAINER: 0, PLAYER: -1}}
    devices = choose_devices(rank_info_of(0), config, FakeGroup(0, 3, others), HOST_SLOT, [0, 2], [0, 1])
    assert devices.trainer == CPU


def agent_on(device: torch.device) -> Agent:
    from tests.watched import CONTINUOUS

    config = PolicyConfig(hidden=(8,), normalize_observations=True)
    return Agent(CONTINUOUS, config, True, 1, torch.float32, device)


@pytest.mark.gpu
def test_agent_is_initialized_equally_on_every_device() -> None:
    cpu_agent, gpu_agent = agent_on(CPU), agent_on(torch.device("cuda"))
    assert cpu_agent.digest() == gpu_agent.digest()
    gpu_agent.load(cpu_agent.state())
    assert cpu_agent.digest() == gpu_agent.digest()
    assert {tensor.device for tensor in gpu_agent.state().values()} == {CPU}
    rows, noise = torch.ones(4, 3), torch.zeros(4, 2)
    outputs = []
    for agent in (cpu_agent, gpu_agent):
        actions = torch.zeros(1, 4, 2)
        actor = agent.actor(noise.unsqueeze(0).numpy(), actions.numpy())
        outputs.append((torch.from_numpy(actor.act(0, rows.numpy())), actions, actor.log_probs(), agent.values(rows)))
    for on_cpu, on_gpu in zip(*outputs, strict=True):
        assert on_gpu.device == CPU
        assert torch.allclose(on_cpu, on_gpu, atol=1e-5)
    for on_cpu, on_gpu in zip(evaluate_rows(cpu_agent, rows.view(2, 2, 3), noise[:2].view(1, 2, 2)), evaluate_rows(gpu_agent, rows.view(2, 2, 3), noise[:2].view(1, 2, 2)), strict=True):  # fmt: skip
        assert on_gpu.device == CPU
        assert torch.allclose(on_cpu, on_gpu, atol=1e-5)


PROGRAM = """
import sys, torch
from tests.runtime.test_devices import HOST_SLOT, RankInfo, RuntimeConfig, Solo, choose_devices
choose_devices(RankInfo(0, 1, 0, 1), RuntimeConfig(device="cuda"), Solo(), HOST_SLOT, [0], [0])
print(torch.get_deterministic_debug_mode(), "torch._inductor" in sys.modules)
"""


@pytest.mark.gpu
def test_cuda_is_deterministic_and_the_compiler_is_not_imported(root: Path, environ: dict[str, str]) -> None:
    environ |= {"PYTHONPATH": os.pathsep.join([str(root), environ["PYTHONPATH"]])}
    finished = subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True)
    assert finished.stdout == "1 False\n", finished.stderr


def train_on_gpu(run_cli, tmp_path: Path, name: str, *words: object) -> list[str]:
    """Train a short run on the GPU, which the ranks share if there is only one, and return its digests."""
    short = (
        "--rollout.steps",
        64,
        "--ppo.epochs",
        3,
        "--plan.shards",
        4,
        "--total-steps",
        2048,
        "--run.progress",
        "off",
    )
    rc, out, err = run_cli("train", "cartpole", *short, "--runtime.device", "cuda", "--name", name, *words)
    assert rc == 0, out + err
    config = json.loads((tmp_path / "runs" / name / "config.json").read_text())
    assert config["runtime"]["device"] == "cuda"
    return digests(tmp_path / "runs" / name)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.serial
class TestOnTheGPU:
    def test_ranks_on_one_gpu_give_the_same_bits(self, run_cli, tmp_path: Path) -> None:
        alone = train_on_gpu(run_cli, tmp_path, "alone", "--ranks", 1)
        assert train_on_gpu(run_cli, tmp_path, "again", "--ranks", 1) == alone
        assert train_on_gpu(run_cli, tmp_path, "two", "--ranks", 2) == alone
        assert train_on_gpu(run_cli, tmp_path, "four", "--ranks", 4, "--runtime.backend", "gloo") == alone

    def test_players_on_the_cpu_give_the_same_bits(self, run_cli, tmp_path: Path) -> None:
        player = ("--runtime.player-device", "cpu")
        alone = train_on_gpu(run_cli, tmp_path, "alone", *player, "--ranks", 1)
        assert train_on_gpu(run_cli, tmp_path, "pair", *player, "--plan", "1:1") == alone
        assert train_on_gpu(run_cli, tmp_path, "players", *player, "--plan", "one-trainer", "--ranks", 3) == alone

    def test_bfloat16_gives_the_same_bits_on_two_ranks(self, run_cli, tmp_path: Path) -> None:
        bf16 = ("--runtime.precision", "bf16")
        assert train_on_gpu(run_cli, tmp_path, "one", *bf16, "--ranks", 1) == train_on_gpu(
            run_cli, tmp_path, "two", *bf16, "--ranks", 2
        )

    @pytest.mark.extra("lightning_fabric")
    def test_fabric_gives_the_bits_of_torch(self, run_cli, tmp_path: Path) -> None:
        alone, fabric = train_on_gpu(run_cli, tmp_path, "torch", "--ranks", 1), ("--runtime.kind", "fabric")
        assert train_on_gpu(run_cli, tmp_path, "one", *fabric, "--ranks", 1) == alone
        assert train_on_gpu(run_cli, tmp_path, "two", *fabric, "--ranks", 2) == alone

    def test_ddp_trains_on_the_gpu(self, run_cli, tmp_path: Path) -> None:
        assert train_on_gpu(run_cli, tmp_path, "ddp", "--plan.gradients", "ddp", "--ranks", 2)

    @pytest.mark.skipif(
        torch.cuda.device_count() < 2 or not dist.is_nccl_available(), reason="NCCL needs a GPU for every rank"
    )
    def test_nccl_gives_the_same_bits(self, run_cli, tmp_path: Path) -> None:
        alone, nccl = (
            train_on_gpu(run_cli, tmp_path, "alone", "--ranks", 1),
            ("--runtime.backend", "nccl", "--ranks", 2),
        )
        assert train_on_gpu(run_cli, tmp_path, "nccl", *nccl) == alone
        assert train_on_gpu(run_cli, tmp_path, "ddp", *nccl, "--plan.gradients", "ddp")

    def test_nccl_needs_a_gpu_for_each_rank(self, run_cli, tmp_path: Path) -> None:
        count = torch.cuda.device_count()
        words = (
            "--runtime.device",
            "cuda",
            "--runtime.backend",
            "nccl",
            "--ranks",
            count + 1,
            "--plan.shards",
            count + 1,
        )
        rc, _, err = run_cli("train", "cartpole", *words, "--env.count", 4 * (count + 1))
        assert rc == 2
        assert "NCCL needs one for each rank" in err
        assert len(err.splitlines()) == 1
        assert not (tmp_path / "runs").exists()

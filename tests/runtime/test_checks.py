"""Tests that unsupported configs are refused in one line, before anything starts."""

import pytest
import torch

from lockstep.runtime import checks
from lockstep.runtime.checks import check_runtime, cuda_devices, resolve_devices, shares_memory
from lockstep.runtime.rank_info import RankInfo
from lockstep.runtime.settings import RuntimeConfig

TORCHRUN = RankInfo(0, 4, 0, 4, "torchrun")
TWO_HOSTS = RankInfo(0, 4, 0, 2, "torchrun")


@pytest.fixture(autouse=True)
def no_fabric_run(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CLI_USED", "ACCELERATOR", "STRATEGY", "PRECISION"):
        monkeypatch.delenv(f"LT_{name}", raising=False)


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch):
    """Return `gpus(count, nccl)`, which pretends that this host has `count` CUDA devices and that PyTorch has NCCL or not."""

    def pretend(count: int, nccl: bool = True) -> None:
        monkeypatch.setattr(checks, "cuda_devices", lambda: count)
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)

    return pretend


def message(
    config: RuntimeConfig, rank_info: RankInfo | None = None, ranks: int = 4, trainers: int | None = None
) -> str:
    """Return the message of the error, or an empty text if the config is accepted."""
    try:
        check_runtime(config, rank_info, range(trainers or ranks), range(trainers or 0, ranks))
    except ValueError as error:
        return str(error)
    return ""


def test_number_of_cuda_devices_equals_that_of_pytorch() -> None:
    assert cuda_devices() == (torch.cuda.device_count() if torch.cuda.is_available() else 0)


def test_defaults_are_accepted_everywhere(gpus) -> None:
    for count in (0, 1, 2):
        gpus(count)
        for rank_info in (None, TORCHRUN, TWO_HOSTS):
            assert message(resolve_devices(RuntimeConfig()), rank_info) == ""


@pytest.mark.parametrize(("count", "device"), [(0, "cpu"), (1, "cuda"), (8, "cuda")])
def test_auto_selects_an_available_device(gpus, count: int, device: str) -> None:
    gpus(count)
    assert resolve_devices(RuntimeConfig()) == RuntimeConfig(device=device)
    assert resolve_devices(RuntimeConfig(device="cpu", player_device="auto")).player_device == device
    assert resolve_devices(RuntimeConfig(player_device="cpu")) == RuntimeConfig(device=device, player_device="cpu")


def test_cuda_and_nccl_are_refused_without_a_gpu(gpus) -> None:
    gpus(0)
    assert message(RuntimeConfig(device="cuda")) == (
        "runtime.device is 'cuda': this host has no CUDA device; use cpu or auto"
    )
    assert message(RuntimeConfig(device="cpu", player_device="cuda:0")).startswith("runtime.player_device is 'cuda:0'")
    assert message(RuntimeConfig(device="cpu", backend="nccl")) == (
        "runtime.backend is 'nccl': this host has no CUDA device; use gloo or auto"
    )


def test_only_ranks_that_compute_on_a_gpu_need_one(gpus) -> None:
    gpus(0)
    config = RuntimeConfig(device="cuda", player_device="cpu", backend="nccl")
    assert message(config, RankInfo(1, 2, 0, 1, "torchrun"), ranks=2, trainers=1) == ""
    assert "no CUDA device" in message(config, RankInfo(0, 2, 0, 1, "torchrun"), ranks=2, trainers=1)
    player_on_gpu = RuntimeConfig(device="cpu", player_device="cuda")
    assert message(player_on_gpu, RankInfo(0, 2, 0, 1, "torchrun"), ranks=2, trainers=1) == ""
    assert "runtime.player_device" in message(player_on_gpu, RankInfo(1, 2, 0, 1, "torchrun"), ranks=2, trainers=1)
    assert "no CUDA device" in message(config, None, ranks=2, trainers=1)


def test_missing_gpus_are_refused(gpus) -> None:
    gpus(2)
    assert message(RuntimeConfig(device="cuda:1")) == ""
    assert message(RuntimeConfig(device="cuda:2")) == "runtime.device is 'cuda:2': this host has cuda:0 to cuda:1"
    gpus(1)
    assert message(RuntimeConfig(device="cuda:1")) == "runtime.device is 'cuda:1': this host has cuda:0"


def test_nccl_needs_a_gpu_for_each_trainer(gpus) -> None:
    gpus(2)
    nccl = RuntimeConfig(device="cuda", backend="nccl")
    assert message(nccl, ranks=2) == ""
    assert message(nccl, ranks=4) == (
        "runtime.backend is 'nccl': 4 ranks would share 2 GPUs, but NCCL needs one for each rank; use auto or gloo"
    )
    assert message(nccl, ranks=4, trainers=2) == ""
    assert "2 ranks would share 1 GPU," in message(RuntimeConfig(device="cuda:1", backend="nccl"), ranks=2)
    assert message(nccl, TORCHRUN) == "", "each rank may be shown a GPU of its own"
    assert "between GPUs" in message(RuntimeConfig(device="cpu", backend="nccl"), ranks=2)
    gpus(2, nccl=False)
    assert message(nccl, ranks=2) == "runtime.backend is 'nccl': this PyTorch was built without NCCL; use auto or gloo"


def test_mpi_needs_a_pytorch_with_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = RuntimeConfig(device="cpu", backend="mpi")
    monkeypatch.setattr(torch.distributed, "is_mpi_available", lambda: False)
    assert message(mpi) == "runtime.backend is 'mpi': this PyTorch was built without MPI; use gloo or auto"
    monkeypatch.setattr(torch.distributed, "is_mpi_available", lambda: True)
    assert message(mpi) == message(mpi, TORCHRUN)
    assert message(mpi).endswith("the ranks must be started by mpirun, mpiexec or srun")
    assert message(mpi, RankInfo(0, 4, 0, 2, "mpirun")) == message(mpi, None, 1) == ""


def test_shared_memory_needs_one_host() -> None:
    shared = RuntimeConfig(device="cpu", backend="shared")
    assert message(shared) == message(shared, TORCHRUN) == message(shared, RankInfo(0, 4)) == ""
    assert "the ranks are on several hosts" in message(shared, TWO_HOSTS)


@pytest.mark.parametrize(
    ("kind", "backend", "shares"),
    [
        ("torch", "auto", True),
        ("torch", "shared", True),
        ("fabric", "shared", True),
        ("fabric", "auto", False),
        ("torch", "gloo", False),
        ("torch", "nccl", False),
    ],
)
def test_shares_memory_depends_on_kind_and_backend(kind: str, backend: str, shares: bool) -> None:
    assert shares_memory(RuntimeConfig(kind=kind, backend=backend)) is shares  # type: ignore[arg-type]


def test_missing_fabric_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    assert message(RuntimeConfig(device="cpu", kind="fabric")) == (
        "runtime.kind is 'fabric': Lightning Fabric is not installed; pip install 'lockstep-rl[fabric]'"
    )


@pytest.mark.parametrize(
    ("options", "config", "part"),
    [
        ({}, {}, ""),
        ({"ACCELERATOR": "cpu", "STRATEGY": "ddp", "PRECISION": "bf16-mixed"}, {"precision": "bf16"}, ""),
        ({"ACCELERATOR": "auto", "PRECISION": "32"}, {}, ""),
        ({"ACCELERATOR": "gpu"}, {"device": "cuda:1"}, ""),
        ({"ACCELERATOR": "cuda"}, {}, "--accelerator is 'cuda', but runtime.device is 'cpu'"),
        ({"ACCELERATOR": "cpu"}, {"device": "cuda"}, "--accelerator is 'cpu', but runtime.device is 'cuda'"),
        ({"ACCELERATOR": "mps"}, {}, "--accelerator is 'mps'"),
        ({"STRATEGY": "fsdp"}, {}, "--strategy is 'fsdp'"),
        ({"PRECISION": "bf16-mixed"}, {}, "--precision is 'bf16-mixed', but runtime.precision is 'fp32'"),
        ({"PRECISION": "16-mixed"}, {"precision": "bf16"}, "--precision is '16-mixed'"),
    ],
)
def test_options_of_fabric_run_must_agree_with_the_config(
    monkeypatch: pytest.MonkeyPatch, gpus, options: dict[str, str], config: dict[str, str], part: str
) -> None:
    gpus(2)
    for name, value in options.items():
        monkeypatch.setenv(f"LT_{name}", value)
    requested = RuntimeConfig(**({"device": "cpu"} | config))  # type: ignore[arg-type]
    assert message(requested) == "", "the options are ignored without fabric run"
    monkeypatch.setenv("LT_CLI_USED", "1")
    refused = message(requested)
    assert part in refused
    assert bool(refused) is bool(part)


def test_fabric_run_on_the_cpu_resolves_auto(monkeypatch: pytest.MonkeyPatch, gpus) -> None:
    gpus(2)
    monkeypatch.setenv("LT_CLI_USED", "1")
    monkeypatch.setenv("LT_ACCELERATOR", "cpu")
    assert resolve_devices(RuntimeConfig()).device == "cpu"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "", "cuda:0,1", "mps"])
def test_invalid_device_names_are_refused(device: str) -> None:
    for name in ("device", "player_device"):
        with pytest.raises(ValueError, match=f"runtime.{name} is '{device}': it must be auto, cpu, cuda or cuda:N"):
            RuntimeConfig(**{name: device})  # type: ignore[arg-type]


def test_numbers_of_threads_are_bounded() -> None:
    for name in ("threads", "player_threads"):
        with pytest.raises(ValueError, match=f"runtime.{name} is 0"):
            RuntimeConfig(**{name: 0})  # type: ignore[arg-type]


def test_portable_bits_need_the_cpu_and_its_instructions(gpus, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(1)
    portable = RuntimeConfig(bits="portable")
    assert resolve_devices(portable).device == "cpu"
    monkeypatch.setattr(checks, "portable_problem", lambda: None)
    assert message(RuntimeConfig(bits="portable", device="cpu")) == ""
    assert message(RuntimeConfig(bits="portable", device="cuda")) == (
        "runtime.bits is 'portable': runtime.device is 'cuda'; use cpu, or runtime.bits fast"
    )
    assert message(RuntimeConfig(bits="portable", device="cpu", player_device="cuda")) == (
        "runtime.bits is 'portable': runtime.player_device is 'cuda'; use cpu, or runtime.bits fast"
    )
    assert message(RuntimeConfig(bits="portable", device="cpu", precision="bf16")) == (
        "runtime.bits is 'portable': runtime.precision is 'bf16'; use fp32 or fp64, or runtime.bits fast"
    )
    monkeypatch.setattr(checks, "portable_problem", lambda: "this processor is aarch64, not x86-64")
    assert message(RuntimeConfig(bits="portable", device="cpu")) == (
        "runtime.bits is 'portable': this processor is aarch64, not x86-64; use fast"
    )

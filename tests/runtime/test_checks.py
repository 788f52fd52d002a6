"""What can't work is said before anything starts, and in one line."""

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
    """`gpus(n)`: from now on this host has n CUDA devices, and PyTorch has NCCL or not."""

    def pretend(count: int, nccl: bool = True) -> None:
        monkeypatch.setattr(checks, "cuda_devices", lambda: count)
        monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: nccl)

    return pretend


def line(config: RuntimeConfig, place: RankInfo | None = None, ranks: int = 4, trainers: int | None = None) -> str:
    """What is said to the user; empty: nothing."""
    try:
        check_runtime(config, place, range(trainers or ranks), range(trainers or 0, ranks))
    except ValueError as error:
        return str(error)
    return ""


def test_devices_are_counted_as_pytorch_does() -> None:
    assert cuda_devices() == (torch.cuda.device_count() if torch.cuda.is_available() else 0)


def test_defaults_work_anywhere(gpus) -> None:
    for count in (0, 1, 2):
        gpus(count)
        for place in (None, TORCHRUN, TWO_HOSTS):
            assert line(resolve_devices(RuntimeConfig()), place) == ""


@pytest.mark.parametrize(("count", "device"), [(0, "cpu"), (1, "cuda"), (8, "cuda")])
def test_auto_is_decided_by_what_there_is(gpus, count: int, device: str) -> None:
    gpus(count)
    assert resolve_devices(RuntimeConfig()) == RuntimeConfig(device=device)
    assert resolve_devices(RuntimeConfig(device="cpu", player_device="auto")).player_device == device
    assert resolve_devices(RuntimeConfig(player_device="cpu")) == RuntimeConfig(device=device, player_device="cpu")


def test_without_a_gpu(gpus) -> None:
    gpus(0)
    assert line(RuntimeConfig(device="cuda")) == (
        "runtime.device is 'cuda': there is no CUDA device here; use cpu or auto"
    )
    assert line(RuntimeConfig(device="cpu", player_device="cuda:0")).startswith("runtime.player_device is 'cuda:0'")
    assert line(RuntimeConfig(device="cpu", backend="nccl")) == (
        "runtime.backend is 'nccl': there is no CUDA device here; use gloo or auto"
    )


def test_only_who_computes_on_a_gpu_needs_one(gpus) -> None:
    gpus(0)
    config = RuntimeConfig(device="cuda", player_device="cpu", backend="nccl")
    assert line(config, RankInfo(1, 2, 0, 1, "torchrun"), ranks=2, trainers=1) == ""
    assert "no CUDA device" in line(config, RankInfo(0, 2, 0, 1, "torchrun"), ranks=2, trainers=1)
    turned = RuntimeConfig(device="cpu", player_device="cuda")
    assert line(turned, RankInfo(0, 2, 0, 1, "torchrun"), ranks=2, trainers=1) == ""
    assert "runtime.player_device" in line(turned, RankInfo(1, 2, 0, 1, "torchrun"), ranks=2, trainers=1)
    assert "no CUDA device" in line(config, None, ranks=2, trainers=1)


def test_gpus_that_are_not_there(gpus) -> None:
    gpus(2)
    assert line(RuntimeConfig(device="cuda:1")) == ""
    assert line(RuntimeConfig(device="cuda:2")) == "runtime.device is 'cuda:2': this host has cuda:0 to cuda:1"
    gpus(1)
    assert line(RuntimeConfig(device="cuda:1")) == "runtime.device is 'cuda:1': this host has cuda:0"


def test_nccl_needs_a_gpu_for_each_trainer(gpus) -> None:
    gpus(2)
    nccl = RuntimeConfig(device="cuda", backend="nccl")
    assert line(nccl, ranks=2) == ""
    assert line(nccl, ranks=4) == (
        "runtime.backend is 'nccl': 4 ranks would share 2 GPUs, and it needs one for each; use auto or gloo"
    )
    assert line(nccl, ranks=4, trainers=2) == ""
    assert "2 ranks would share 1 GPU," in line(RuntimeConfig(device="cuda:1", backend="nccl"), ranks=2)
    assert line(nccl, TORCHRUN) == "", "each rank may be shown a GPU of its own"
    assert "between GPUs" in line(RuntimeConfig(device="cpu", backend="nccl"), ranks=2)
    gpus(2, nccl=False)
    assert line(nccl, ranks=2) == "runtime.backend is 'nccl': this PyTorch is built without it; use auto or gloo"


def test_mpi_needs_a_pytorch_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    mpi = RuntimeConfig(device="cpu", backend="mpi")
    monkeypatch.setattr(torch.distributed, "is_mpi_available", lambda: False)
    assert line(mpi) == "runtime.backend is 'mpi': this PyTorch was built without it; use gloo or auto"
    monkeypatch.setattr(torch.distributed, "is_mpi_available", lambda: True)
    assert line(mpi) == line(mpi, TORCHRUN)
    assert line(mpi).endswith("its ranks must be started by mpirun, mpiexec or srun")
    assert line(mpi, RankInfo(0, 4, 0, 2, "mpirun")) == line(mpi, None, 1) == ""


def test_shared_memory_is_of_one_host() -> None:
    shared = RuntimeConfig(device="cpu", backend="shared")
    assert line(shared) == line(shared, TORCHRUN) == line(shared, RankInfo(0, 4)) == ""
    assert "the ranks are on several hosts" in line(shared, TWO_HOSTS)


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
def test_what_shares_memory(kind: str, backend: str, shares: bool) -> None:
    assert shares_memory(RuntimeConfig(kind=kind, backend=backend)) is shares  # type: ignore[arg-type]


def test_fabric_must_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "find_spec", lambda name: None)
    assert line(RuntimeConfig(device="cpu", kind="fabric")) == (
        "runtime.kind is 'fabric': it is not installed; pip install 'lockstep-rl[fabric]'"
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
def test_what_fabric_run_was_asked_for_agrees(
    monkeypatch: pytest.MonkeyPatch, gpus, options: dict[str, str], config: dict[str, str], part: str
) -> None:
    gpus(2)
    for name, value in options.items():
        monkeypatch.setenv(f"LT_{name}", value)
    wanted = RuntimeConfig(**({"device": "cpu"} | config))  # type: ignore[arg-type]
    assert line(wanted) == "", "nobody used fabric run"
    monkeypatch.setenv("LT_CLI_USED", "1")
    found = line(wanted)
    assert part in found
    assert bool(found) is bool(part)


def test_fabric_run_on_the_cpu_decides_auto(monkeypatch: pytest.MonkeyPatch, gpus) -> None:
    gpus(2)
    monkeypatch.setenv("LT_CLI_USED", "1")
    monkeypatch.setenv("LT_ACCELERATOR", "cpu")
    assert resolve_devices(RuntimeConfig()).device == "cpu"


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "", "cuda:0,1", "mps"])
def test_devices_have_names(device: str) -> None:
    for name in ("device", "player_device"):
        with pytest.raises(ValueError, match=f"runtime.{name} is '{device}': it must be auto, cpu, cuda or cuda:N"):
            RuntimeConfig(**{name: device})  # type: ignore[arg-type]


def test_threads_have_bounds() -> None:
    for name in ("threads", "player_threads"):
        with pytest.raises(ValueError, match=f"runtime.{name} is 0"):
            RuntimeConfig(**{name: 0})  # type: ignore[arg-type]

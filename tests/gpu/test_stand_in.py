"""Tests marked `gpu` on two simulated GPUs, which cover all but rounding, streams and NCCL on machines without a GPU."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.timeout(900),
    pytest.mark.command("g++"),
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU"),
]
HERE = Path(__file__).parent
MIXED = """
import torch
there, here, beyond = (torch.arange(3.0, device=device) for device in ("cuda", "cpu", "cuda:1"))
for wrong in (lambda: there + here, lambda: there + beyond, lambda: torch.cat([there, here]), lambda: here[there.long()], lambda: there.numpy(), lambda: here.addmm(
    there.view(3, 1), there.view(1, 3)
)):
    try:
        print(wrong())
    except (RuntimeError, TypeError) as error:
        print("refused")
from lockstep.compiling.graphs import cuda_graph
for formula in (lambda x: (x + here.to("cuda"),), lambda x: (x.nonzero(),), lambda x: (x * x.sum().item(),), lambda x: (x + 1,)):
    try:
        print(cuda_graph(formula, [there])(there)[0].cpu().tolist())
    except RuntimeError as error:
        print("not recorded")
torch.cuda.set_device(beyond.device)
print((beyond * 2).device, torch.ones(2, device="cuda").device, there.new_ones(1).device, beyond.cpu().to("cuda:0").device)
print((there * 2)[here.long()].cpu().tolist(), there.sum().item(), (there + torch.tensor(1.0)).device)
"""


@pytest.fixture(scope="module", name="gpu")
def fixture_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment variables of a process with simulated GPUs."""
    library, torch_folder = tmp_path_factory.mktemp("gpu") / "stand_in.so", Path(torch.__file__).parent
    folders = (torch_folder / "include", torch_folder / "include" / "torch" / "csrc" / "api" / "include")
    words = ["-std=c++20", "-O0", "-shared", "-fPIC", *(f"-I{folder}" for folder in folders), HERE / "stand_in.cpp"]
    linked = [f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{torch_folder / 'lib'}", "-o", library]
    subprocess.run(["g++", *words, *linked], check=True)
    path = os.pathsep.join([str(HERE / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "LOCKSTEP_TEST_GPU": str(library), "OMP_NUM_THREADS": "1"}


def test_simulated_gpus_refuse_tensors_of_different_devices(gpu: dict[str, str]) -> None:
    finished = subprocess.run([sys.executable, "-c", MIXED], env=gpu, capture_output=True, text=True, check=True)
    assert finished.stdout.splitlines() == ["refused"] * 6 + ["not recorded"] * 3 + [
        "[1.0, 2.0, 3.0]",
        "cuda:1 cuda:1 cuda:0 cuda:0",
        "[0.0, 2.0, 4.0] 3.0 cuda:0",
    ]


def test_gpu_tests_pass(gpu: dict[str, str], root: Path) -> None:
    """Run the tests marked `gpu`. None may fail, and only tests of NCCL may be skipped."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", "tests"]
    finished = subprocess.run(words, cwd=root, env=gpu, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stdout[-20000:]
    skipped = [line for line in finished.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("NCCL" in line for line in skipped), skipped
    (number,) = re.findall(r"(\d+) passed", finished.stdout)
    assert int(number) >= 15

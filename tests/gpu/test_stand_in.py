"""The tests that need GPUs, on two stand-ins: what they show but for rounding, streams and NCCL, and on machines without any."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.slow,
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
torch.cuda.set_device(beyond.device)
print((beyond * 2).device, torch.ones(2, device="cuda").device, there.new_ones(1).device, beyond.cpu().to("cuda:0").device)
print((there * 2)[here.long()].cpu().tolist(), there.sum().item(), (there + torch.tensor(1.0)).device)
"""


@pytest.fixture(scope="module", name="gpu")
def fixture_gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment in which there is one."""
    library, own = tmp_path_factory.mktemp("gpu") / "stand_in.so", Path(torch.__file__).parent
    folders = (own / "include", own / "include" / "torch" / "csrc" / "api" / "include")
    words = ["-std=c++20", "-O0", "-shared", "-fPIC", *(f"-I{folder}" for folder in folders), HERE / "stand_in.cpp"]
    linked = [f"-L{own / 'lib'}", "-lc10", "-ltorch_cpu", f"-Wl,-rpath,{own / 'lib'}", "-o", library]
    subprocess.run(["g++", *words, *linked], check=True)
    path = os.pathsep.join([str(HERE / "first"), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | {"PYTHONPATH": path, "LOCKSTEP_TEST_GPU": str(library), "OMP_NUM_THREADS": "1"}


def test_it_refuses_what_a_gpu_refuses(gpu: dict[str, str]) -> None:
    found = subprocess.run([sys.executable, "-c", MIXED], env=gpu, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines() == ["refused"] * 6 + ["cuda:1 cuda:1 cuda:0 cuda:0", "[0.0, 2.0, 4.0] 3.0 cuda:0"]


def passed(gpu: dict[str, str], root: Path, *folders: str) -> int:
    """The number of tests that passed there, of those that need a GPU; none may fail, and only NCCL may be missing."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *folders]
    found = subprocess.run(words, cwd=root, env=gpu, capture_output=True, text=True)
    assert found.returncode == 0, found.stdout[-20000:]
    left = [line for line in found.stdout.splitlines() if line.startswith("SKIPPED")]
    assert all("NCCL" in line for line in left), left
    (number,) = re.findall(r"(\d+) passed", found.stdout)
    return int(number)


def test_what_needs_a_gpu_passes_on_it(gpu: dict[str, str], root: Path) -> None:
    """The tests of layers and of the update; those that start whole runs are left to `make test-exhaustive`."""
    assert passed(gpu, root, "tests/algorithm/test_update.py", "tests/models/test_encoders.py") >= 5


@pytest.mark.exhaustive
def test_whatever_needs_a_gpu_passes_on_it(gpu: dict[str, str], root: Path) -> None:
    assert passed(gpu, root, "tests") >= 15

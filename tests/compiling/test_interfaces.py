"""Private interfaces of PyTorch that are missing: one line that names the versions, or no compilation."""

import sys
from pathlib import Path

import pytest
import torch
from tests.compiling.doubled import Doubled

from lockstep.compiling import interfaces
from lockstep.compiling.build import CompilerFailed
from lockstep.compiling.interfaces import TORCH_VERSIONS, InterfaceMissing, private_interface, version_problem
from lockstep.compiling.kernels import ahead_of_time
from lockstep.config import Config
from lockstep.config.decode import decode
from lockstep.experiment.resolve import resolve
from lockstep.experiment.start import start_warnings


def test_supported_versions_equal_the_requirement_of_the_package(root: Path) -> None:
    assert f'"{TORCH_VERSIONS}"' in (root / "pyproject.toml").read_text()


@pytest.mark.parametrize(("module", "name"), [("torch", "nothing.at_all"), ("torch.nothing", "at_all")])
def test_missing_interface_is_reported_in_one_line(module: str, name: str) -> None:
    with pytest.raises(InterfaceMissing) as caught:
        private_interface(module, name)
    assert str(caught.value) == (
        f"PyTorch {torch.__version__} has no {module}.{name}, which compiling needs; install 'torch>=2.13,<2.14'"
    )


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("torch._inductor", "aot_compile"),
        ("torch._inductor.cpu_vec_isa", "valid_vec_isa_list"),
        ("torch._inductor.ir", "TensorBox"),
        ("torch._inductor.lowering", "lowerings"),
        ("torch.fx.experimental.proxy_tensor", "make_fx"),
    ],
)
@pytest.mark.slow
def test_missing_interface_of_the_compiler_is_reported(
    module: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private_interface(module, name)
    monkeypatch.delattr(sys.modules[module], name)
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path))
    with pytest.raises(
        CompilerFailed, match=rf"has no {module}\.{name}.*install 'torch>=2\.13,<2\.14', or use"
    ) as caught:
        ahead_of_time(Doubled("missing"), (torch.ones(3),))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("installed", "fits"), [("2.13.0+cpu", True), ("2.13.9", True), ("2.12.1", False), ("2.14.0", False)]
)
def test_other_versions_of_pytorch_do_not_compile(installed: str, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "version", lambda name: installed)
    problem = f"PyTorch {installed} is not torch>=2.13,<2.14, whose private interfaces compiling needs"
    assert version_problem() == (None if fits else problem)


def test_new_run_with_another_version_is_not_compiled_and_warns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interfaces, "version", lambda name: "2.99.1")
    config = decode({"runtime": {"compile": "on", "device": "cpu"}}, Config())
    resolved = resolve(config, 1)
    assert resolved.runtime.compile == "off"
    (line,) = [line for line in start_warnings(config, resolved) if "PyTorch" in line]
    assert line == (
        "PyTorch 2.99.1 is not torch>=2.13,<2.14, whose private interfaces compiling needs, so the update is not compiled: "
        "the run will be slower"
    )

"""Environment variables for portable bits."""

import os
from pathlib import Path

import pytest

from lockstep.processes import portable
from lockstep.processes.portable import check_portable, is_portable, portable_problem, portable_variables

CPUINFO = "processor\t: 0\nflags\t\t: fpu {}\n\nprocessor\t: 1\n"


@pytest.fixture
def cpuinfo(monkeypatch: pytest.MonkeyPatch):
    """Function that sets the instructions of the processor."""

    def set_to(instructions: str) -> None:
        monkeypatch.setattr(Path, "read_text", lambda path: CPUINFO.format(instructions))
        monkeypatch.setattr(portable.platform, "machine", lambda: "x86_64")

    return set_to


def test_processors_with_avx2_and_fma_can_be_portable(cpuinfo) -> None:
    cpuinfo("avx avx2 bmi2 f16c fma sse4_2")
    assert portable_problem() is None
    cpuinfo("avx f16c sse4_2")
    assert portable_problem() == "this processor lacks the instructions avx2, bmi2, fma"


def test_other_architectures_can_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portable.platform, "machine", lambda: "aarch64")
    assert portable_problem() == "this processor is aarch64, not x86-64"


def test_every_variable_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in portable_variables().items():
        monkeypatch.setenv(name, value)
    assert is_portable()
    check_portable()
    for name in portable_variables():
        with monkeypatch.context() as changed:
            changed.delenv(name)
            assert not is_portable()
            with pytest.raises(
                ValueError, match=r"^runtime\.bits is 'portable': this process becomes a rank; start it"
            ):
                check_portable()
    assert is_portable()


@pytest.mark.parametrize(
    ("numpy", "features"), [("2.4.6", "X86_V3"), ("2.3.1", "SSSE3 SSE41 POPCNT SSE42 AVX F16C FMA3 AVX2")]
)
def test_features_are_named_as_the_installed_numpy_does(
    monkeypatch: pytest.MonkeyPatch, numpy: str, features: str
) -> None:
    monkeypatch.setattr(portable, "version", lambda package: numpy)
    assert portable_variables.__wrapped__()["NPY_ENABLE_CPU_FEATURES"] == features


def test_process_with_the_variables_is_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced = []
    monkeypatch.setattr(os, "execve", lambda *arguments: replaced.append(arguments))
    monkeypatch.setenv("NPY_DISABLE_CPU_FEATURES", "AVX2")
    portable.restart_portable(["train", "cartpole"])
    (program, command, environment) = replaced.pop()
    assert program == command[0]
    assert command[-2:] == ["train", "cartpole"]
    assert environment.items() >= portable_variables().items()
    assert "NPY_DISABLE_CPU_FEATURES" not in environment, "NumPy refuses both"
    for name, value in portable_variables().items():
        monkeypatch.setenv(name, value)
    portable.restart_portable(["train", "cartpole"])
    assert not replaced


def test_environment_of_a_process_that_is_about_to_start() -> None:
    environment = portable.portable_environment({"HOME": "/", "NPY_DISABLE_CPU_FEATURES": "AVX2", "MKL_CBWR": "AVX2"})
    assert environment == {"HOME": "/", **portable_variables()}

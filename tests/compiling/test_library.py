"""Tests of finding, building and loading the library of the interpreter."""

import ctypes
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.quick_compiler import quick_compiler

from lockstep.compiling import library as library_module
from lockstep.compiling.build import CompilerFailed
from lockstep.compiling.cache import cache_folder
from lockstep.compiling.compiler import library_command, library_name, variants
from lockstep.compiling.library import interpreter_problem, load_interpreter
from lockstep.processes.portable import missing_instructions

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")


@pytest.fixture(name="quick")
def fixture_quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Use an empty cache and a compiler that copies libraries. Return the folder of the cache."""
    monkeypatch.setenv("CXX", str(quick_compiler(tmp_path)))
    monkeypatch.setenv("LOCKSTEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_library_is_built_once(quick: Path, tmp_path: Path) -> None:
    announced: list[int] = []
    for _ in range(2):
        load_interpreter(announce=lambda: announced.append((tmp_path / "calls").exists()))
    assert announced == [False], "it must be announced once, before it is built"
    assert len((tmp_path / "calls").read_text().splitlines()) == len([*quick.glob("*.so")]) == len(variants())


def test_damaged_library_is_built_again(quick: Path, capfd: pytest.CaptureFixture[str]) -> None:
    load_interpreter()
    damaged = sorted(quick.glob("*.so"))[0]
    content = damaged.read_bytes()
    damaged.unlink()  # not in place: this process has loaded it
    damaged.write_bytes(content[:5000])
    load_interpreter()
    assert capfd.readouterr().err == f"{damaged} does not match its recorded hash; building it again\n"
    load_interpreter()
    assert capfd.readouterr().err == ""


def test_unusable_cache_folder_is_reported_in_one_line(quick: Path) -> None:
    quick.write_text("a file")
    with pytest.raises(
        CompilerFailed, match=r"^runtime\.compile is 'on': the cache folder .*; set LOCKSTEP_CACHE to an"
    ):
        load_interpreter()


def test_failure_of_the_compiler_is_reported_in_one_line(quick: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "false")
    with pytest.raises(CompilerFailed, match=r"the compilation failed, see .*failure\.log") as caught:
        load_interpreter()
    assert len(str(caught.value).splitlines()) == 1
    assert not [*quick.glob("*.so")]
    assert not [*quick.glob("building-*")]


def test_library_that_cannot_be_opened_is_reported(
    quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = tmp_path / "compiler"
    wrong.write_text('#!/bin/sh\nfor word; do last=$word; done\necho "not a library" > $last\n')
    with pytest.raises(CompilerFailed, match=r"\.so can't be opened \(.*\); use --runtime\.compile off in a new run$"):
        load_interpreter()


def test_libraries_of_a_wheel_need_no_compiler(quick: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = library_module._built(lambda: None, lambda: None)
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert interpreter_problem() == "there is no C++ compiler here (g++, or what CXX names)"
    wheel = tmp_path / "wheel"
    wheel.mkdir()
    for variant, library in built.items():
        shutil.copy(library, wheel / library_name(variant))
    monkeypatch.setattr(library_module, "_HERE", wheel)
    shutil.rmtree(quick)
    assert interpreter_problem() is None
    load_interpreter()
    assert not quick.exists()


def test_processors_without_the_instructions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if platform.machine() != "x86_64":
        pytest.skip("other processors have the generic library")
    monkeypatch.setattr(library_module, "missing_instructions", lambda names: f"this processor lacks {names[0]}")
    assert interpreter_problem() == "this processor lacks avx2"


def test_loading_does_not_import_torch() -> None:
    program = "import sys, lockstep.compiling.library as x; x.load_interpreter(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.fixture(scope="module", name="libraries")
def fixture_libraries(tmp_path_factory: pytest.TempPathFactory) -> list[ctypes.CDLL]:
    """Load all libraries that this processor can run; the generic one is built without optimization."""
    load_interpreter()
    generic = tmp_path_factory.mktemp("generic") / "generic.so"
    words = ["-O1" if word == "-O3" else word for word in library_command("generic")]
    subprocess.run([*words, str(generic)], check=True)
    paths = library_module._built(lambda: None, lambda: None)
    if missing_instructions(("avx512f", "avx512vl", "avx512dq", "avx512bw")):
        paths.pop("avx512", None)
    return [library_module._open(path) for path in (generic, *paths.values())]


def test_all_libraries_compute_the_same_bits(libraries: list[ctypes.CDLL], monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from tests.compiling.formulas import CASES, formula_of

    from lockstep.compiling import kernels

    for case in CASES.values():
        formula, arguments = formula_of(*case)
        results = []
        for library in libraries:
            monkeypatch.setattr(kernels, "loaded_interpreter", lambda library=library: library)
            results.append(kernels.InterpretedKernel(formula, arguments)(*arguments)[0])
        assert len(results) == len(libraries) > 1
        assert all(torch.equal(result, results[0]) for result in results), case
    assert cache_folder().exists()

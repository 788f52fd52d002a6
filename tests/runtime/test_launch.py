"""Tests of the launcher of `--ranks`: open sockets, environment of the ranks, files left behind, exit codes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.live_runs import listening, ranks_of, reached, wait_for

from lockstep.processes.exit_codes import FAILED, RANK_LOST
from lockstep.runtime import watch
from lockstep.runtime.launch import launch
from lockstep.runtime.settings import RuntimeConfig

_LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


@pytest.mark.parametrize("backend", ["auto", "gloo"])
def test_no_socket_listens_to_other_hosts(begin, tmp_path: Path, backend: str) -> None:
    run = tmp_path / "run"
    words = ["train", "cartpole", "--ranks", 2, "--out", tmp_path, "--name", "run", "--run.progress", "off"]
    begin(*words, "--runtime.backend", backend, "--total-steps", 10_000_000, "--runtime.compile", "off")
    wait_for(reached(run, 1), "an iteration")
    addresses = listening(ranks_of(run))
    assert set(addresses) <= _LOOPBACK
    assert bool(addresses) is (backend == "gloo"), "shared memory needs no socket"


def test_ranks_use_the_module_search_path_of_the_launcher(environ: dict[str, str], tmp_path: Path) -> None:
    """The console script does not import from the working folder, so its ranks must not either."""
    (tmp_path / "gymnasium.py").write_text("raise SystemExit('the wrong gymnasium')\n")
    script = tmp_path / "bin" / "lockstep"
    script.parent.mkdir()
    script.write_text("import sys\nfrom lockstep.cli.main import main\nsys.exit(main())\n")
    words = ["train", "--ranks", "2", "--rollout.steps", "32", "--total-steps", "512", "--run.progress", "off"]
    command = [sys.executable, str(script), *words]
    finished = subprocess.run(
        command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished


@pytest.mark.serial
def test_killed_launcher_leaves_no_files(begin, environ: dict[str, str], tmp_path: Path) -> None:
    temporary, run = tmp_path / "temporary", tmp_path / "run"
    temporary.mkdir()
    words = ["train", "cartpole", "--ranks", 2, "--out", tmp_path, "--name", "run", "--run.progress", "off"]
    words += ["--runtime.backend", "gloo", "--total-steps", 10_000_000, "--runtime.compile", "off"]
    environ["TMPDIR"] = str(temporary)
    process = begin(*words)
    wait_for(reached(run, 1), "an iteration")
    process.kill()
    process.wait()
    wait_for(lambda: not ranks_of(run), "the ranks end")
    assert not list(temporary.iterdir())


@pytest.mark.serial
def test_no_files_remain_in_shared_memory_or_temporary_folders(run_cli, tmp_path: Path) -> None:
    def remaining() -> set[Path]:
        return {*Path("/dev/shm").glob("*lockstep*"), *tmp_path.glob("lockstep-*")}

    for backend in ("auto", "gloo"):
        words = ["train", "cartpole", "--ranks", 2, "--rollout.steps", 32, "--total-steps", 1024, "--name", backend]
        finished = run_cli(*words, "--runtime.backend", backend, env={"TMPDIR": str(tmp_path)})
        assert finished.rc == 0, finished
    assert remaining() == set()


def test_exit_code_is_that_of_the_first_failure(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = launch(["rank", "3", str(tmp_path / "missing"), "0"], 2, RuntimeConfig())
    assert (outcome.code, outcome.fault) == (2, ""), "bad input would come back"
    assert "is not a run" in capfd.readouterr().err


def test_exit_code_of_simultaneous_failures_is_that_of_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank that lost another one ends with code 4, and the environment that failed with 1."""
    codes = iter([RANK_LOST, FAILED, RANK_LOST])

    def failed_process(*arguments: object, **options: object) -> SimpleNamespace:
        code = next(codes)
        return SimpleNamespace(poll=lambda: code, wait=lambda: code, returncode=code)

    monkeypatch.setattr(subprocess, "Popen", failed_process)
    monkeypatch.delattr(os, "memfd_create")  # without memory, the codes of processes count
    assert launch(["rank"], 3, RuntimeConfig(backend="gloo")).code == FAILED


@pytest.mark.parametrize(("late", "seconds", "code"), [(0, 4, 0), (1, 60, RANK_LOST)])
def test_only_rank_0_may_work_after_the_others_have_ended(
    late: int, seconds: int, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 waits for evaluations, up to an hour."""
    wait = f"time.sleep({seconds}) if os.environ.get('LOCKSTEP_RANK') == '{late}' else None"
    (tmp_path / "sitecustomize.py").write_text(f"import os, time\n{wait}\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.setattr(watch, "_GRACE_AFTER_SUCCESS", 0.5)
    monkeypatch.delattr(os, "memfd_create")  # without memory, the codes of processes count
    assert launch(["presets"], 2, RuntimeConfig()).code == code


def test_unknown_exit_code_of_a_rank_is_printed_and_mapped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    outcome = launch(["digest", str(tmp_path)], 2, RuntimeConfig())
    assert outcome.code == 4
    assert re.fullmatch(r"rank [01] ended with exit code 7, before the end of training", outcome.fault)
    assert f"lockstep: {outcome.fault}\n" in capfd.readouterr().err


def test_signal_at_the_start_of_a_rank_stops_the_run(run_cli, environ, tmp_path: Path) -> None:
    """Python runs `sitecustomize` before any code of lockstep."""
    kill = "os.kill(os.getpid(), signal.SIGTERM) if os.environ.get('LOCKSTEP_RANK') == '1' else None"
    (tmp_path / "sitecustomize.py").write_text(f"import os, signal\n{kill}\n")
    path = f"{tmp_path}{os.pathsep}{environ['PYTHONPATH']}"
    words = ["train", "cartpole", "--ranks", 2, "--out", tmp_path, "--name", "run", "--runtime.compile", "off"]
    finished = run_cli(*words, env={"PYTHONPATH": path})
    assert finished.rc == 75, finished
    assert "stopped after iteration 1" in finished.stdout

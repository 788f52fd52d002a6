"""Our own launch: what it opens while it runs, and what it leaves when it is over."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.live_runs import ranks_of, reached, wait_for

from lockstep.runtime.launch import launch
from lockstep.runtime.settings import RuntimeConfig

pytestmark = pytest.mark.serial

_LISTEN = "0A"
_LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


def listening(processes: list[int]) -> list[str]:
    """Hexadecimal addresses that the processes' TCP sockets listen on."""
    sockets = set()
    for process in processes:
        for descriptor in Path(f"/proc/{process}/fd").iterdir():
            sockets.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    rows = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [row[1].partition(":")[0] for row in rows if row[3] == _LISTEN and row[9] in sockets]


@pytest.mark.parametrize("backend", ["auto", "gloo"])
def test_nothing_listens_to_other_hosts(begin, tmp_path: Path, backend: str) -> None:
    run = tmp_path / "run"
    words = ["train", "cartpole", "--ranks", 2, "--out", tmp_path, "--name", "run", "--run.progress", "off"]
    begin(*words, "--runtime.backend", backend, "--total-steps", 10_000_000)
    wait_for(reached(run, 1), "an iteration")
    found = listening(ranks_of(run))
    assert set(found) <= _LOOPBACK
    assert bool(found) is (backend == "gloo"), "shared memory needs no socket"


def test_ranks_import_from_where_the_launcher_does(environ: dict[str, str], tmp_path: Path) -> None:
    """The console script does not look for packages in the working folder; so its ranks don't either."""
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


def test_nothing_is_left_in_shared_memory_or_temporary_folders(run_cli, tmp_path: Path) -> None:
    def left() -> set[Path]:
        return {*Path("/dev/shm").glob("*lockstep*"), *tmp_path.glob("lockstep-*")}

    for backend in ("auto", "gloo"):
        words = ["train", "cartpole", "--ranks", 2, "--rollout.steps", 32, "--total-steps", 1024, "--name", backend]
        finished = run_cli(*words, "--runtime.backend", backend, env={"TMPDIR": str(tmp_path)})
        assert finished.rc == 0, finished
    assert left() == set()


def test_the_first_failure_is_the_exit_code(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert launch(["digest", str(tmp_path / "nothing")], 2, RuntimeConfig()) == 2
    assert "there is no such run" in capfd.readouterr().err


def test_an_unknown_exit_code_of_a_rank_is_named_and_mapped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    assert launch(["digest", str(tmp_path)], 2, RuntimeConfig()) == 4
    assert re.search(r"^lockstep: rank [01] ended with exit code 7$", capfd.readouterr().err, re.MULTILINE)


def test_a_signal_in_the_first_moments_of_a_rank_asks_it_to_stop(run_cli, environ, tmp_path: Path) -> None:
    """Python runs `sitecustomize` before anything of ours."""
    kill = "os.kill(os.getpid(), signal.SIGTERM) if os.environ.get('LOCKSTEP_RANK') == '1' else None"
    (tmp_path / "sitecustomize.py").write_text(f"import os, signal\n{kill}\n")
    path = f"{tmp_path}{os.pathsep}{environ['PYTHONPATH']}"
    words = ["train", "cartpole", "--ranks", 2, "--out", tmp_path, "--name", "run"]
    finished = run_cli(*words, env={"PYTHONPATH": path})
    assert finished.rc == 75, finished
    assert "stopped after iteration 1" in finished.stdout

"""Comparison of programs by the progress that they print."""

import sys
from pathlib import Path

import pytest

from lockstep.bench.comparison import ProgramTiming, _rate, find_peers, record, table, time_lockstep, time_program
from lockstep.bench.workloads import ENVIRONMENTS, PEERS, STEPS, WORKLOADS, Peer
from lockstep.config import Config
from lockstep.experiment.resolve import resolve
from lockstep.phases import PHASES
from lockstep.processes.children import ProcessFailed
from lockstep.run.folder import RunFolder
from lockstep.run.settings import RunConfig


def program(tmp_path: Path, *lines: str) -> list[str]:
    path = tmp_path / "program.py"
    path.write_text("\n".join(["import time", *(f"print({line!r}); time.sleep(0.01)" for line in lines)]))
    return [sys.executable, str(path)]


def interpreter(tmp_path: Path, answer: str) -> str:
    path = tmp_path / f"python{len(list(tmp_path.iterdir()))}"
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_rate_is_measured_after_the_first_steps() -> None:
    marks = [(2.0, 2048), (3.0, 4095), (7.0, 6144), (8.0, 8192), (9.0, 10240)]
    assert _rate(marks) == 2048.0


def test_progress_is_read_from_the_output_of_a_program(tmp_path: Path) -> None:
    finish = time_program(program(tmp_path, "starting", "steps 4096", "steps 8192", "that was all, 9000 steps"))
    assert finish.rate > 0
    assert 0 < finish.first_update < finish.seconds
    with pytest.raises(ProcessFailed, match="fewer than 2 updates after 4096 steps; increase --updates"):
        time_program(program(tmp_path, "steps 2048", "steps 4096"))


def test_the_rate_of_lockstep_is_computed_from_its_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lockstep prints the lines of several updates at once, so its output cannot be timed."""
    rows = [
        {
            "seconds": 0.5 * k,
            "env_steps": 2048 * k,
            "iteration": k,
            "t_iter": 0.5,
            **{f"t_{name}": 0.1 * k for name in PHASES},
        }
        for k in range(1, 6)
    ]
    monkeypatch.setattr(RunFolder, "metrics", lambda _: rows)
    finish = time_lockstep(resolve(Config(run=RunConfig(total_steps=2048)), 1), 1, 2)
    assert finish.rate == 4096
    assert finish.seconds - finish.first_update == 2.0
    # the phases are means over iterations 3 to 5
    assert finish.phases == pytest.approx({"iter": 500.0, **dict.fromkeys(PHASES, 400.0)})


def test_the_error_of_a_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match="code 1: ModuleNotFoundError"):
        time_program([sys.executable, "-c", "import nothing_of_this_name"])


def test_ratios_compare_the_first_program_with_the_others_within_a_repeat() -> None:
    first = [ProgramTiming(rate, 4.0, 1.0) for rate in (3000.0, 1500.0, 3000.0)]
    second = [ProgramTiming(rate, 9.0, 1.0) for rate in (1000.0, 500.0, 1500.0)]
    finishes = {"lockstep, 1 rank": first, "Stable-Baselines3 2.9.2": second}
    recorded = record(finishes, "lockstep, 1 rank")["Stable-Baselines3 2.9.2"]
    assert isinstance(recorded, dict)
    assert recorded["faster"] == {"median": 3.0, "least": 2.0, "most": 3.0}
    lines = table(finishes, "lockstep, 1 rank")
    assert max(map(len, lines)) <= 80
    assert lines[2].split()[-2:] == ["3.00", "2.00-3.00"]
    assert lines[1].endswith("4.0 s")
    assert lines[-1].startswith("note: repeats differ by 100%")


def test_peer_runs_with_the_first_interpreter_that_has_its_package(tmp_path: Path) -> None:
    first = interpreter(tmp_path, '{"skrl": "1"}')
    second = interpreter(tmp_path, '{"skrl": "2", "stable_baselines3": "3"}')
    found, missing = find_peers([first, second], WORKLOADS["cartpole"])
    assert {peer.peer.name: (peer.interpreter, peer.version) for peer in found} == {
        "Stable-Baselines3": (second, "3"),
        "skrl": (first, "1"),
    }
    assert missing == []
    assert [peer.name for peer in find_peers([first], WORKLOADS["memory"])[1]] == ["sb3-contrib"]
    assert [peer.name for peer in find_peers([first], WORKLOADS["cartpole"])[1]] == ["Stable-Baselines3"]


@pytest.mark.parametrize("answer", ["hello", "/nowhere/python"])
def test_programs_that_are_not_interpreters_are_rejected(tmp_path: Path, answer: str) -> None:
    path = answer if answer.startswith("/") else interpreter(tmp_path, answer)
    with pytest.raises(ValueError, match=r"--python is .*: it must be a Python 3 interpreter"):
        find_peers([path], WORKLOADS["cartpole"])


@pytest.mark.parametrize(
    ("workload", "peer"),
    [(name, peer) for name, workload in WORKLOADS.items() for peer in PEERS if peer.recurrent == bool(workload.memory)],
)
def test_peers_run_the_workload(workload: str, peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(peer.module)
    monkeypatch.chdir(tmp_path)
    command = WORKLOADS[workload].command(peer, sys.executable, updates=4)
    assert time_program(command).rate > 0
    assert list(tmp_path.iterdir()) == [], "peers must not leave files"


def test_the_programs_of_peers_exist_and_do_not_import_lockstep() -> None:
    for peer in PEERS:
        assert "lockstep" not in peer.program.read_text()
    assert (ENVIRONMENTS, STEPS) == (8, 256)

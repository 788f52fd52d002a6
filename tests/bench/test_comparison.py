"""Programs seen from outside, and what their marks say."""

import sys
from pathlib import Path

import pytest

from lockstep.bench.comparison import Finish, _rate, find_peers, marked, record, table, trained
from lockstep.bench.training import PHASES
from lockstep.bench.workloads import ENVIRONMENTS, PEERS, STEPS, WORKS, Peer
from lockstep.config import Config
from lockstep.experiment.resolve import resolve
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


def test_the_rate_is_that_between_marks_after_the_first_steps() -> None:
    marks = [(2.0, 2048), (3.0, 4095), (7.0, 6144), (8.0, 8192), (9.0, 10240)]
    assert _rate(marks) == 2048.0


def test_marks_are_read_from_what_a_program_prints(tmp_path: Path) -> None:
    finish = marked(program(tmp_path, "starting", "steps 4096", "steps 8192", "that was all, 9000 steps"))
    assert finish.rate > 0
    assert 0 < finish.first_update < finish.seconds
    with pytest.raises(ProcessFailed, match="more --updates"):
        marked(program(tmp_path, "steps 2048", "steps 4096"))


def test_our_own_rate_is_that_of_the_metrics(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is printed comes for several updates at once, so it can't be timed from outside."""
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
    finish = trained(resolve(Config(run=RunConfig(total_steps=2048)), 1), 1, 2)
    assert finish.rate == 4096
    assert finish.seconds - finish.first_update == 2.0
    assert finish.phases == pytest.approx({"iter": 500.0, **dict.fromkeys(PHASES, 400.0)})  # of iterations 3 to 5


def test_a_program_that_fails_is_told(tmp_path: Path) -> None:
    with pytest.raises(ProcessFailed, match="code 1: ModuleNotFoundError"):
        marked([sys.executable, "-c", "import nothing_of_this_name"])


def test_ratios_are_of_the_first_to_the_others_within_a_repeat() -> None:
    ours = [Finish(rate, 4.0, 1.0) for rate in (3000.0, 1500.0, 3000.0)]
    theirs = [Finish(rate, 9.0, 1.0) for rate in (1000.0, 500.0, 1500.0)]
    found = {"lockstep, 1 rank": ours, "Stable-Baselines3 2.9.2": theirs}
    written = record(found, "lockstep, 1 rank")["Stable-Baselines3 2.9.2"]
    assert isinstance(written, dict)
    assert written["faster"] == {"median": 3.0, "least": 2.0, "most": 3.0}
    lines = table(found, "lockstep, 1 rank")
    assert max(map(len, lines)) <= 80
    assert lines[2].split()[-2:] == ["3.00", "2.00-3.00"]
    assert lines[1].endswith("4.0 s")
    assert lines[-1].startswith("note: repeats differ by 100%")


def test_a_peer_is_taken_from_the_first_interpreter_that_has_it(tmp_path: Path) -> None:
    one, two = interpreter(tmp_path, '{"skrl": "1"}'), interpreter(tmp_path, '{"skrl": "2", "stable_baselines3": "3"}')
    found, absent = find_peers([one, two], WORKS["cartpole"])
    assert {peer.peer.name: (peer.interpreter, peer.version) for peer in found} == {
        "Stable-Baselines3": (two, "3"),
        "skrl": (one, "1"),
    }
    assert absent == []
    assert [peer.name for peer in find_peers([one], WORKS["memory"])[1]] == ["sb3-contrib"]
    assert [peer.name for peer in find_peers([one], WORKS["cartpole"])[1]] == ["Stable-Baselines3"]


@pytest.mark.parametrize("words", ["hello", "/nowhere/python"])
def test_what_is_no_interpreter_is_refused(tmp_path: Path, words: str) -> None:
    path = words if words.startswith("/") else interpreter(tmp_path, words)
    with pytest.raises(ValueError, match=r"--python is .* interpreter of Python 3"):
        find_peers([path], WORKS["cartpole"])


@pytest.mark.parametrize(
    ("work", "peer"),
    [(name, peer) for name, work in WORKS.items() for peer in PEERS if peer.remembers == bool(work.memory)],
)
def test_peers_really_do_the_work(work: str, peer: Peer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(peer.module)
    monkeypatch.chdir(tmp_path)
    command = WORKS[work].command(peer, sys.executable, updates=4)
    assert marked(command).rate > 0
    assert list(tmp_path.iterdir()) == [], "a peer leaves no files"


def test_the_programs_of_peers_are_there_and_need_no_lockstep() -> None:
    for peer in PEERS:
        assert "lockstep" not in peer.program.read_text()
    assert (ENVIRONMENTS, STEPS) == (8, 256)

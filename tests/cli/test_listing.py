"""`lockstep runs`: states, numbers, filters and order, of real runs and of folders in every state."""

import json
import os
import signal
from pathlib import Path

import pytest
from tests.live_runs import reached, wait_for

from lockstep.cli.main import main
from lockstep.run.folder import RunFolder
from lockstep.telemetry.listing import list_runs


def make_run(name: str, ends: list[str], env: str = "Acrobot-v1", age: int = 0, **metrics: float) -> RunFolder:
    """Create a run in `runs/`: one start for each of `ends`, "killed" without an end; and a line of metrics."""
    sizes = {"env": {"id": env, "count": 4}, "rollout": {"steps": 25}}  # an iteration has 100 steps
    folder = RunFolder.create(Path("runs") / name, {**sizes, "run": {"seed": 3, "total_steps": 1000}}, {})
    start = {"event": "start", "time": "2030-01-01T00:00:00+00:00", "iteration": 0, "last": 10, "ranks": 1}
    lines: list[dict[str, object]] = []
    for how in ends:
        lines.append({**start, "plan": "coupled", "host": "here", "packages": {}})
        if how != "killed":
            lines.append({"event": "end", "time": "2030-01-01T00:01:00+00:00", "iteration": 5, "how": how, "why": ""})
    if lines:
        (folder.path / "starts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if metrics:
        path = folder.path / "metrics.jsonl"
        first = {"iteration": 1, "episodes": 1, "return_mean": -300.0}
        path.write_text(json.dumps(first) + "\n" + json.dumps({"iteration": 5, **metrics}) + "\n")
        modified = path.stat().st_mtime - age
        os.utime(path, (modified, modified))
    return folder


@pytest.fixture(name="runs")
def fixture_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    make_run("best", ["stopped", "done"], env_steps=500, seconds=2.0, return_mean_20=-80.0, return_mean=-70.0)
    make_run("weak", ["stopped"], age=7300, env_steps=500, seconds=5.0, episodes=3, return_mean=-500.0)
    make_run("lost", ["killed"], "CartPole-v1", age=200, env_steps=490)
    make_run("never", [])
    for name, iteration in (("old", 10), ("older", 4)):  # of a version that did not record starts
        (make_run(name, []).path / "checkpoints" / f"{iteration:08}").mkdir(parents=True)
    make_run("grid/runs/a", ["failed"])
    make_run("search/runs/poor", ["stopped"]).mark_pruned("return 9")
    make_run("search/runs/unstarted", []).mark_pruned("return 9")
    make_run("search/runs/completed", ["stopped", "done"]).mark_pruned("return 9")
    (make_run("bad", ["done"]).path / "config.json").write_text("{")


def table(capsys: pytest.CaptureFixture[str], *words: str) -> list[list[str]]:
    assert main(["runs", *words]) == 0
    return [line.split() for line in capsys.readouterr().out.splitlines()[1:]]


def test_every_state_is_recognized(runs: None) -> None:
    states = {str(run.path.relative_to("runs")): run.state for run in list_runs(Path("runs"))}
    ended = {"best": "done", "weak": "stopped", "lost": "killed", "never": "new", "grid/runs/a": "failed"}
    ended |= {"old": "done", "older": "stopped"}
    ended |= {f"search/runs/{name}": "pruned" for name in ("poor", "unstarted", "completed")}
    assert states == ended | {"bad": "broken"}
    [poor] = [run for run in list_runs(Path("runs"), "pruned") if run.path.name == "poor"]
    assert poor.why == "return 9"
    with RunFolder(Path("runs/lost")).locked():
        assert {run.path.name for run in list_runs(Path("runs")) if run.state == "running"} == {"lost"}


def test_table_has_the_newest_numbers(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row[0]: row[1:] for row in table(capsys)}
    assert rows["best"][:-2] == ["done", "Acrobot-v1", "500", "50%", "-80", "250"]
    assert rows["weak"] == ["stopped", "Acrobot-v1", "500", "50%", "-450", "100", "2", "h"]
    assert rows["lost"] == ["killed", "CartPole-v1", "490", "50%", "-300", "–", "3", "min"]


def test_a_folder_of_a_sweep_lists_its_runs(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row[:2] for row in table(capsys, "runs/grid")] == [["runs/a", "failed"]]


def test_a_folder_without_runs_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    assert main(["runs"]) == 0
    assert capsys.readouterr().out == "runs holds no runs\n"


def test_filters_and_order(runs: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row[0] for row in table(capsys, "--sort", "return")][:3] == ["best", "lost", "weak"]
    assert [row[0] for row in table(capsys, "--sort", "steps", "--env", "Acrobot-v1")][:2] == ["best", "weak"]
    assert [row[0] for row in table(capsys, "--sort", "name")][:2] == ["bad", "best"]
    assert [row[0] for row in table(capsys)][-3:] == ["lost", "weak", "bad:"], "the last line says why a run is broken"
    assert [row[0] for row in table(capsys, "--state", "killed")] == ["lost"]
    main(["runs", "--state", "running"])
    assert capsys.readouterr().out == "runs holds no such runs\n"
    assert main(["runs", "--json", "--env", "CartPole-v1"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)
    assert {name: listed[name] for name in ("path", "state", "steps", "total_steps", "share", "seed", "iteration")} == {
        "path": "runs/lost",
        "state": "killed",
        "steps": 490,
        "total_steps": 1000,
        "share": 50,
        "seed": 3,
        "iteration": 5,
    }


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("nowhere",), "nowhere: there is no such folder"),
        (("--state", "don"), "--state is 'don': it must be one of running, done, pruned, stopped, failed, killed, new, broken; did you mean done?"),
    ],
)  # fmt: skip
def test_bad_input_is_reported_in_one_line(
    runs: None, words: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["runs", *words]) == 2
    assert capsys.readouterr().err == f"lockstep: {line}\n"


@pytest.mark.slow
def test_state_of_a_real_run_while_it_trains_and_after_a_kill(run_cli, begin, tmp_path: Path) -> None:
    run = tmp_path / "runs" / "live"
    words = ("--total-steps", 10**8, "--run.progress", "off", "--runtime.compile", "off")
    process = begin("train", "cartpole", *words, "--name", "live", "--out", tmp_path / "runs")
    wait_for(reached(run, 2), "2 iterations")
    assert run_cli("runs").stdout.splitlines()[1].split()[:3] == ["live", "running", "CartPole-v1"]
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    wait_for(lambda: not RunFolder(run).in_use(), "the end of its lock")
    assert run_cli("runs").stdout.splitlines()[1].split()[:3] == ["live", "killed", "CartPole-v1"]


@pytest.mark.slow
def test_a_pruned_run_that_is_resumed_is_done(run_cli, tmp_path: Path) -> None:
    words = ("--total-steps", 4096, "--run.checkpoint-every", 1, "--run.progress", "off", "--name", "again")
    assert run_cli("train", "cartpole", *words).rc == 0
    RunFolder(tmp_path / "runs" / "again").mark_pruned("return 9")
    assert run_cli("runs").stdout.splitlines()[1].split()[:2] == ["again", "pruned"]
    assert run_cli("resume", "again", "--iteration", 1).rc == 0
    assert run_cli("runs").stdout.splitlines()[1].split()[:2] == ["again", "done"]

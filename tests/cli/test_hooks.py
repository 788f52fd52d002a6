"""Functions of users that are called after every iteration: `run.hooks` and `on_iteration`."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from tests.live_runs import digests, rows

import lockstep

MODULE = """
import sys

import torch


def on_iteration(iteration):
    if iteration.number == 3:
        iteration.policy._agent.load({name: torch.zeros_like(x) for name, x in iteration.policy._agent.state().items()})
    if iteration.number == 8:
        iteration.stop()
    return {"my/number": iteration.number / 2}


def fails(iteration):
    raise KeyError("no such key")


def exits(iteration):
    raise SystemExit("that is\\nenough")


def returns_text(iteration):
    return {"name": "text"}


def changes_weights(iteration):
    if iteration.number == 2:
        agent = sys._getframe(1).f_locals["agent"]
        next(iter(agent.state().values())).add_(1)
"""
TASK = ("--env", "CartPole-v1", "--rollout.steps", 64, "--ppo.epochs", 1, "--ppo.minibatches", 4, "--plan.shards", 2)
SHORT = ("--total-steps", 20 * 8 * 64, "--run.progress", "off", "--run.checkpoint-every", 3)
LAST = 9
"""The iteration after the one in which the hook ends training."""


@pytest.fixture(autouse=True)
def module(tmp_path: Path) -> None:
    (tmp_path / "my_hooks.py").write_text(MODULE)


@pytest.fixture(scope="module", name="whole")
def fixture_whole(run_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with a run without a hook, `whole`."""
    folder = tmp_path_factory.mktemp("whole")
    run_in(folder, "train", *TASK, *SHORT, "--name", "whole", "--ranks", 1)
    return folder / "runs" / "whole"


@pytest.mark.slow
@pytest.mark.parametrize(
    "plan", [("--ranks", 1), ("--ranks", 2), ("--plan", "1:1"), ("--plan", "one-player", "--ranks", 2)]
)
def test_hook_records_metrics_and_ends_training_in_the_same_iteration_on_every_plan(
    whole: Path, run_cli, tmp_path: Path, plan
) -> None:
    done = run_cli("train", *TASK, *SHORT, *plan, "--run.hooks", "my_hooks", "--name", "hooked")
    assert done.rc == 0, done
    assert "ended: by a hook\n" in done.stdout
    run = tmp_path / "runs" / "hooked"
    assert [row["my/number"] for row in rows(run)] == [number / 2 for number in range(1, LAST + 1)]
    assert digests(run) == digests(whole)[:LAST], "the hook has changed the run"


@pytest.mark.slow
def test_resumed_run_ends_after_the_same_iteration_and_needs_its_hook_again(
    whole: Path, run_cli, tmp_path: Path
) -> None:
    hook = ("--run.hooks", "my_hooks")
    every = (*SHORT[:-1], 1, "--run.keep", 20)
    assert run_cli("train", *TASK, *every, *hook, "--name", "again", "--ranks", 1).rc == 0
    refused = run_cli("resume", "again")
    assert refused.rc == 2
    assert refused.stderr.startswith("lockstep: run.hooks is 'my_hooks' in this run: a run folder can't import modules")
    ended = run_cli("resume", "again", *hook)
    assert (ended.rc, ended.stdout) == (0, f"runs/again is complete: a hook ended training in iteration {LAST}\n")
    # the checkpoint of iteration 8 knows that the hook has ended training
    resumed = run_cli("resume", "again", "--iteration", LAST - 1, "--run.hooks", "none", "--ranks", 2)
    assert resumed.rc == 0
    line = "the last start of this run called my_hooks:on_iteration after each iteration, and this one does not; "
    assert f"lockstep: {line}give it again if it should\n" in resumed.stderr
    assert digests(tmp_path / "runs" / "again") == digests(whole)[:LAST]


@pytest.mark.slow
def test_run_with_a_goal_that_was_not_reached_is_reported_as_ended_by_its_hook(run_cli) -> None:
    hook = ("--run.hooks", "my_hooks")
    ended = run_cli("train", *TASK, *SHORT, *hook, "--run.stop-at-return", 500, "--ranks", 1, "--name", "goal")
    assert "ended: by a hook\n" in ended.stdout
    resumed = run_cli("resume", "goal", *hook)
    assert resumed.stdout == f"runs/goal is complete: a hook ended training in iteration {LAST}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "name", "code", "message"),
    [
        *(
            (ranks, "fails", 'KeyError("no such key")', "failed after iteration 1: KeyError: 'no such key'")
            for ranks in (1, 2)
        ),
        (
            2,
            "exits",
            "SystemExit(",
            "called sys.exit(that is enough) after iteration 1: to end training, call its argument's method stop()",
        ),
    ],
)
def test_error_of_a_hook_is_shown_with_its_line(
    run_cli, tmp_path: Path, ranks: int, name: str, code: str, message: str
) -> None:
    failed = run_cli("train", *TASK, *SHORT, "--ranks", ranks, "--run.hooks", f"my_hooks:{name}", "--name", "failed")
    assert failed.rc == 1, failed
    assert f"raise {code}" in failed.stderr
    assert failed.stderr.count("Traceback") == 1
    assert failed.stderr.splitlines()[-1] == f"lockstep: the hook {name} {message}"
    assert failed.stderr.count("lockstep: ") == 1
    state = json.loads((tmp_path / "runs/failed/starts.jsonl").read_text().splitlines()[-1])
    assert state["how"] == "failed"
    assert [row["iteration"] for row in rows(tmp_path / "runs/failed")] == [1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hook", "code", "message"),
    [
        ("nothing", 2, "run.hooks is 'nothing': there is no module 'nothing'"),
        ("my_hooks:other", 2, "run.hooks is 'my_hooks:other': my_hooks has no function 'other'"),
        ("my_hooks:torch", 2, "run.hooks is 'my_hooks:torch': torch is of type module, not a function"),
        ("my_hooks:returns_text", 1, "the hook returns_text returned name = 'text': it must be a finite number"),
        (
            "my_hooks:changes_weights",
            1,
            "the hook changes_weights changed the agent in training after iteration 2: change",
        ),
    ],
)
def test_wrong_hook_is_named_in_one_line(run_cli, tmp_path: Path, hook: str, code: int, message: str) -> None:
    refused = run_cli("train", *TASK, *SHORT, "--ranks", 1, "--run.hooks", hook, "--name", "wrong")
    assert refused.rc == code, refused
    assert refused.stderr.splitlines()[-1].startswith(f"lockstep: {message}")
    assert (tmp_path / "runs").exists() == (code == 1)


def test_hook_in_a_file_is_refused(run_cli, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("run: {hooks: my_hooks}\n")
    refused = run_cli("train", "--config", "mine.yaml")
    assert refused.rc == 2
    assert refused.stderr.startswith("lockstep: run.hooks is 'my_hooks': a config file can't import modules")


@pytest.mark.slow
def test_hook_of_a_file_is_replaced_by_the_flag(run_cli, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("run: {hooks: other}\n")
    done = run_cli("train", "--config", "mine.yaml", *TASK, *SHORT, "--run.hooks", "none", "--name", "without")
    assert done.rc == 0, done
    assert lockstep.Run(tmp_path / "runs" / "without").config.run.hooks is None


@pytest.mark.slow
def test_runs_of_a_sweep_call_the_hook(run_cli, tmp_path: Path) -> None:
    settings = ("--ranks", 1, "--run.hooks", "my_hooks", "--over", "run.seed=1,2", "--out", "swept")
    done = run_cli("sweep", *TASK, *SHORT, *settings)
    assert done.rc == 0, done
    runs = [path.parent for path in (tmp_path / "swept").rglob("metrics.jsonl")]
    assert [len(rows(run)) for run in runs] == [LAST, LAST]
    refused = run_cli("sweep", *TASK, *SHORT, "--over", "run.hooks=my_hooks,my_hooks:fails", "--out", "refused")
    assert refused.rc == 2
    assert "run.hooks" in refused.stderr


@pytest.mark.slow
def test_program_passes_a_function(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    seen: list[tuple[int, bool]] = []

    def hook(iteration: lockstep.Iteration) -> dict[str, float]:
        same = iteration.policy.digest == iteration.metrics["digest"] and iteration.path == tmp_path / "runs/api"
        seen.append((iteration.number, same))
        if iteration.number == 2:
            iteration.stop()
        return {"twice": 2 * iteration.number}

    settings = {
        "env": {"id": "CartPole-v1", "count": 8},
        "rollout": {"steps": 64},
        "ppo": {"epochs": 1, "minibatches": 4},
        "plan": {"shards": 2},
        "total_steps": 20 * 8 * 64,
        "name": "api",
    }
    run = lockstep.train(on_iteration=hook, **settings)
    assert seen == [(1, True), (2, True), (3, True)]
    assert not run.stopped
    assert [row["twice"] for row in run.metrics] == [2, 4, 6]
    assert digests(run.path) == digests(whole)[:3]

    with pytest.raises(ValueError, match=r"^ranks is 2: other processes can't find on_iteration"):
        lockstep.train(on_iteration=hook, ranks=2, **settings)
    with pytest.raises(ValueError, match=r"^on_iteration is 3: it must be a function$"):
        lockstep.train(on_iteration=3, **settings)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"on_iteration was given too; remove one of the two$"):
        lockstep.train(on_iteration=hook, run={"hooks": "my_hooks"}, **settings)
    with pytest.raises(RuntimeError, match=r"^the hook fails failed after iteration 1") as failure:
        lockstep.train(on_iteration=__import__("my_hooks").fails, **{**settings, "name": "failing"})
    assert isinstance(failure.value.__cause__, KeyError)
    named = dataclasses.replace(run.config.run, name="named", hooks="my_hooks")
    assert len(lockstep.train(config=dataclasses.replace(run.config, run=named)).metrics) == LAST
    two = lockstep.train(on_iteration=sys.modules["my_hooks"].on_iteration, ranks=2, **{**settings, "name": "two"})
    assert digests(two.path) == digests(whole)[:LAST]


def test_resume_without_the_function_of_the_last_start_says_so(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def look(iteration: lockstep.Iteration) -> None:
        iteration.stop()

    settings = {"env": {"id": "CartPole-v1", "count": 4}, "rollout": {"steps": 16}, "ppo": {"epochs": 1}}
    run = lockstep.train(on_iteration=look, total_steps=4 * 16 * 4, name="looks", **settings)
    assert len(run.metrics) == 2
    capfd.readouterr()
    calls: list[int] = []
    for hook in (None, lambda iteration: calls.append(iteration.number), None):
        lockstep.resume(run, iteration=0, on_iteration=hook)
    lines = [line for line in capfd.readouterr().err.splitlines() if "the last start" in line]
    names = [f"{__name__}:{look.__qualname__}", f"{__name__}:{look.__qualname__.replace('look', '<lambda>')}"]
    assert calls == [1, 2, 3, 4]
    assert lines == [
        f"lockstep: the last start of this run called {name} after each iteration, and this one does not; give it again if it should"
        for name in names
    ]

"""Warnings before a run starts."""

from pathlib import Path

import pytest

import lockstep
from lockstep.cli import train
from lockstep.cli.main import main
from lockstep.run.folder import RunFolder

pytestmark = pytest.mark.extra("envpool")
LINE = (
    "env.engine is 'envpool', which begins new episodes at every checkpoint, after run.checkpoint_every x rollout.steps = 2 x 32 = 64 steps; "
    "episodes of CartPole-v1 last up to 500 steps, so longer ones never end and have no return: set run.checkpoint_every to 16 or more"
)
BIASED = (
    "env.engine is 'envpool', which begins new episodes at every checkpoint, after run.checkpoint_every x rollout.steps = 16 x 32 = 512 steps; "
    "episodes of CartPole-v1 last up to 500 steps, so long ones are cut more often than short ones and have no return, and length_mean may be up "
    "to 98% too low: set run.checkpoint_every to 157 or more, or set run.evaluate_every"
)
WORDS = ("--env", "CartPole-v1", "--rollout.steps", "32", "--runtime.compile", "off", "--env.engine")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("envpool", "--run.checkpoint-every", "2"), f"{LINE}\n"),
        (("envpool", "--run.checkpoint-every", "16"), f"{BIASED}\n"),
        (("envpool", "--run.checkpoint-every", "16", "--run.evaluate-every", "16"), ""),
        (("envpool", "--run.checkpoint-every", "2", "--run.evaluate-every", "16"), f"{LINE}\n"),
        (("envpool", "--run.checkpoint-every", "157"), ""),
        (("envpool", "--run.checkpoint-every", "2", "--total-steps", "512"), ""),  # these are all of its iterations
        (("gymnasium", "--run.checkpoint-every", "2"), ""),
        (("gymnasium-vector", "--run.checkpoint-every", "2"), ""),  # CartPole's state is saved
    ],
)
def test_train_warns_if_checkpoints_cut_episodes(
    words: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def return_at_once(folder: RunFolder, *_: object) -> int:
        folder.unlock()
        return 0

    monkeypatch.setattr(train, "start", return_at_once)
    assert main(["train", *WORDS, *words]) == 0
    assert capsys.readouterr().err == message


def test_api_warns_if_checkpoints_cut_episodes() -> None:
    settings = {"rollout": {"steps": 32}, "run.progress": "off", "run.checkpoint_every": 2, "runtime.compile": "off"}
    with pytest.warns(UserWarning, match="begins new episodes") as caught:
        lockstep.train(env={"id": "CartPole-v1", "engine": "envpool"}, total_steps=768, **settings)
    assert [(str(warning.message), warning.filename) for warning in caught] == [(LINE, __file__)]


@pytest.mark.slow
def test_sweep_warns_once(run_cli) -> None:
    words = (
        *WORDS,
        "envpool",
        "--run.checkpoint-every",
        2,
        "--total-steps",
        768,
        "--over",
        "run.seed=1..2",
        "--out",
        "found",
    )
    finished = run_cli("sweep", *words)
    assert finished.rc == 0, finished
    assert finished.stderr.count(LINE) == 1

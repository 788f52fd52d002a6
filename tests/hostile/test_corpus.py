"""Every hostile run folder: one line and a fitting exit code, or a result; no traceback, no hang, no file of the user changed."""

import resource
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from tests.hostile.corpus import CHECKPOINT_FILES, JSON_FILES, corpus

import lockstep
from lockstep.cli.main import main

MEGABYTE = 2**10
"""In the unit of `ru_maxrss`, kilobytes."""
CASES = dict(corpus())
COMMANDS = (
    ("runs", "."),
    ("digest", "run"),
    ("eval", "run", "--episodes", "1"),
    ("resume", "run", "--total-steps", "192", "--run.progress", "off", "--restarts", "0"),
)

OTHER_COMMANDS = (
    ("plot", "run"),
    ("plot", "run", "--what", "curves"),
    ("plot", "run", "--what", "timing"),
    ("bench", "simulate", "run"),
    ("plot", "run", "--what", "evaluation"),
    ("report", "run"),
    ("diff", "run", "run"),
    ("verify", "run", "--iterations", "1", "--ranks", "1"),
    ("eval", "run", "--best", "--sample", "--episodes", "1"),
    ("push", "run", "--username", "u", "--dry-run", "--skip-play"),
    ("export", "run", "--format", "torch"),
)


@pytest.fixture(name="trained", scope="module")
def fixture_trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run of two iterations, with a checkpoint of each."""
    path = tmp_path_factory.mktemp("trained")
    settings = {
        "env.count": 4,
        "rollout.steps": 16,
        "policy.hidden": [4],
        "ppo.minibatches": 2,
        "runtime.compile": "off",
    }
    quiet = {"run.progress": "off", "run.checkpoint_every": 1, "run.folder": str(path), "run.name": "run"}
    lockstep.train(env="CartPole-v1", total_steps=128, **settings, **quiet)
    assert main(["eval", str(path / "run"), "--episodes", "1"]) == 0
    return path / "run"


@pytest.fixture(name="hostile")
def fixture_hostile(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Function that makes the hostile run `run` in the working directory, beside a folder of the user, which is compared afterwards."""
    shutil.copytree(trained, tmp_path / "run")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("mine")
    monkeypatch.chdir(tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield lambda name: CASES[name](tmp_path / "run")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 * MEGABYTE
    assert [path.name for path in (tmp_path / "outside").iterdir()] == ["file"]
    assert (tmp_path / "outside" / "file").read_text() == "mine"
    assert not (tmp_path / "unpickled").exists()


def check(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Run a command, and check its exit code and what it prints on stderr."""
    capsys.readouterr()
    code = main(words)
    errors = capsys.readouterr().err.splitlines()
    assert code in ((0,) if words[0] == "runs" else (0, 1, 2)), (words, code, errors)
    assert all(line.startswith("lockstep: ") and len(line) < 500 for line in errors), (words, errors)
    assert bool(code) <= len(errors) <= 3, (words, code, errors)


def selected() -> Iterator[object]:
    """Yield the names of the cases. Of every file with every kind of content, most are exhaustive: each file and each kind has some without."""
    for place, name in enumerate(CASES):
        product = name.startswith((*JSON_FILES, *CHECKPOINT_FILES))
        yield pytest.param(name, marks=[pytest.mark.exhaustive] if product and place % 5 else [])


@pytest.mark.parametrize("name", list(selected()))
def test_hostile_folder_is_refused_in_one_line_or_read(
    name: str, hostile: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    hostile(name)
    for words in COMMANDS:
        check(words, capsys)


@pytest.mark.exhaustive
@pytest.mark.extra("matplotlib", "jinja2", "onnxscript", "huggingface_hub")
@pytest.mark.parametrize("name", CASES)
def test_hostile_folder_is_refused_in_one_line_or_read_by_every_command(
    name: str, hostile: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    hostile(name)
    for words in OTHER_COMMANDS:
        check(words, capsys)


def test_a_run_without_changes_is_read(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    for words in COMMANDS:
        assert main(list(words)) == 0
    assert capsys.readouterr().err == ""

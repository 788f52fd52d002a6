"""`lockstep push`, and the commands on the documentation page of the Hub."""

import json
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest
from tests.hub.fake_hub import TOKEN, FakeHub

from lockstep.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")
"""Warning of the client for large files."""
DOCUMENTS = ("README.md", "docs/hub.md")


@pytest.fixture
def working_folder(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Copy the run to `runs/first` in a new folder, and make that folder the current one."""
    shutil.copytree(trained, tmp_path / "runs/first")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.extra("imageio_ffmpeg", "pygame")
def test_commands_of_the_documentation_work(
    hub: FakeHub, working_folder: Path, root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    texts = [(root / name).read_text(encoding="utf-8") for name in DOCUMENTS]
    commands = re.findall(
        r"^lockstep ((?:push|(?:play|eval) hub:|eval \S+/checkpoints/).*)$", "\n".join(texts), re.MULTILINE
    )
    assert len(commands) == 7
    for command in sorted(commands, key=lambda command: not command.startswith("push")):
        assert main(shlex.split(command, comments=True)) == 0, capsys.readouterr().err
    listed = {name.replace("/K/", "/00000004/") for name in re.findall(r"^\| `([^`]+)` \|", texts[1], re.MULTILINE)}
    assert listed == set(hub.models["me/first"])
    assert (working_folder / "hub/me/first/videos/iteration-00000004.mp4").is_file()
    program = re.search(r"```python\n(.*?)```", texts[1], re.DOTALL)
    assert program is not None
    (working_folder / "program.py").write_text(program[1])
    runpy.run_path("program.py")
    assert json.loads(hub.models["me/first"]["evaluation.json"])["digest"] in capsys.readouterr().out


def test_a_dry_run_needs_no_network_and_no_token(
    hub: FakeHub, working_folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "")
    assert main(["push", "first", "--username", "me", "--skip-play", "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("me/first, private; nothing was uploaded\n\nREADME.md ")
    assert re.search(r"^checkpoints/00000004/agent\.safetensors +[\d,]+ bytes$", output, re.MULTILINE)
    assert "lockstep train cartpole" in output
    assert "replay.mp4" not in output
    assert hub.requests == []
    assert not (working_folder / "runs/first/videos").exists()


@pytest.mark.usefixtures("working_folder")
def test_only_evaluations_of_the_pushed_weights_are_published(hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["push", "first", "--username", "me", "--skip-play"]
    for count, iteration in ((3, "4"), (20, "2")):
        assert main(["eval", "first", "--episodes", "3", "--iteration", iteration]) == 0
        assert main(words) == 0
        assert json.loads(hub.models["me/first"]["evaluation.json"])["episodes"] == count
        assert "evaluation-sampled.json" not in hub.models["me/first"]
    assert main(["eval", "first", "--episodes", "3", "--sample"]) == 0
    assert main(words) == 0
    assert json.loads(hub.models["me/first"]["evaluation-sampled.json"])["actions"] == "drawn"
    assert json.loads(hub.models["me/first"]["evaluation.json"])["actions"] == "most probable"
    assert main(["eval", "first", "--episodes", "3", "--sample", "--iteration", "2"]) == 0
    assert main(words) == 0
    assert "evaluation-sampled.json" not in hub.models["me/first"], "it belongs to other weights"
    assert TOKEN not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("first", "--username is missing; see lockstep push --help"),
        ("two --username me", "'two': there is no such run; runs/ holds bare, first"),
        ("bare --username me", "runs/bare has no checkpoint yet"),
        ("first --username me --token x", "--token: unknown flag; see lockstep push --help"),
        ("first --username a/b", "'a/b/first' is not a valid model name on the Hub: USER/NAME consists of at most 96 letters, digits, '-', '_' and '.', "
         "without '--' and '..', and neither part begins or ends with '-' or '.'"),
    ],
)  # fmt: skip
def test_errors_are_reported_in_one_line(words: str, line: str, hub: FakeHub, working_folder: Path, capsys) -> None:
    (working_folder / "runs/bare").mkdir()
    shutil.copy("runs/first/config.json", "runs/bare/config.json")
    before = sorted(working_folder.rglob("*"))
    assert main(["push", *words.split()]) == 2
    assert capsys.readouterr() == ("", f"lockstep: {line}\n")
    assert sorted(working_folder.rglob("*")) == before
    assert hub.changes() == []


def test_push_without_a_valid_token_changes_nothing(
    hub: FakeHub, working_folder: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(working_folder.rglob("*"))
    for token in ("", "hf_" + "wrong" * 7):
        monkeypatch.setenv("HF_TOKEN", token)
        assert main(["push", "first", "--username", "me"]) == 2
        out, err = capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        assert not token or token not in err
    assert sorted(working_folder.rglob("*")) == before


@pytest.mark.usefixtures("working_folder")
def test_missing_package_is_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", None)
    for words in (["push", "first", "--username", "me", "--dry-run"], ["eval", "hub:me/first"]):
        assert main(words) == 2
        line = "lockstep: the Hub needs huggingface_hub; pip install 'lockstep-rl[hub]'\n"
        assert capsys.readouterr() == ("", line)

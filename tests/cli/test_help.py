"""Help text of every command, and messages about unknown arguments."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.cli.main import COMMANDS, main
from lockstep.config.decode import known_fields
from lockstep.config.fields import RESUMABLE_FIELDS

KINDS = ("throughput", "scaling", "peers", "simulate")
PAGES = [*([command] for command in COMMANDS), *(["bench", kind] for kind in KINDS)]
WORDS = {
    "completion": ["bash"],
    "diff": ["a", "b"],
    "doctor": [],
    "envs": [],
    "bench peers": [],
    "presets": [],
    "push": ["a", "--username", "b"],
}
"""Required arguments of the commands that need other than one positional argument."""
SOURCE = Path(lockstep.__file__).parents[1]


def page(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        code: object = main([*words, "--help"])
    except SystemExit as end:  # argparse's own
        code = end.code
    assert code == 0
    output = capsys.readouterr()
    assert output.err == ""
    return output.out


@pytest.mark.parametrize("words", [[], *PAGES], ids=" ".join)
def test_help_fits_80_columns(words: list[str], monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    text = page(words, capsys)
    assert text.startswith(" ".join(["usage: lockstep", *words]))
    assert [line for line in text.splitlines() if len(line) > 80] == []


def command_flags(words: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Flags of the command itself, without those of the config."""
    return re.findall(r"^  (?:-\w, )?(--[\w.-]+)", page(words, capsys).partition("short flags:")[0], re.MULTILINE)


@pytest.mark.parametrize("words", [words for words in PAGES if words != ["bench"]], ids=" ".join)
def test_message_about_a_misspelled_flag_names_the_nearest(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = [*words, *WORDS.get(" ".join(words), ["cartpole"])]
    for flag in command_flags(words, capsys):
        misspelled = f"{flag}{flag[-1]}"
        assert main([*before, misspelled, "1"]) == 2
        assert capsys.readouterr() == ("", f"lockstep: {misspelled}: unknown flag; did you mean {flag}?\n")


@pytest.mark.parametrize("command", [["train"], ["resume"], ["sweep"], *(["bench", kind] for kind in KINDS)])
def test_message_about_a_misspelled_field_names_the_nearest(
    command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for section, field, _ in known_fields():
        flag = f"--{section}.{field}".replace("_", "-")
        assert main([*command, "x", flag[:-1], "1"]) == 2
        assert capsys.readouterr() == ("", f"lockstep: {flag[:-1]}: unknown flag; did you mean {flag}?\n")


def test_help_of_resume_lists_the_resumable_fields(capsys: pytest.CaptureFixture[str]) -> None:
    text = " ".join(page(["resume"], capsys).split()).replace("- ", "-")
    for path in RESUMABLE_FIELDS:
        assert f"--{path}".replace("_", "-").replace("plan.kind", "plan") in text


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["plot", "a", "--what", "curve"], "--what is 'curve': it must be one of return, evaluation, curves, policy, trajectory, timing; did you mean curves?"),
        (["plot", "a", "--over", "moons"], "--over is 'moons': it must be one of steps, seconds"),
        (["plot", "a", "--axes", "1"], "--axes needs 2 values"),
        (["eval", "a", "--episodes"], "--episodes needs a value"),
        (["--hlep"], "--hlep: unknown command; did you mean --help?"),
        (["bench", "throughputt"], "throughputt: unknown benchmark; did you mean throughput?"),
    ],
)  # fmt: skip
def test_other_invalid_arguments_are_reported_in_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr() == ("", f"lockstep: {line}\n")


def test_pytorch_is_imported_only_where_it_is_needed() -> None:
    runs = [
        ["--help"],
        ["--version"],
        ["presets"],
        ["presets", "cartpole"],
        ["envs"],
        *([*words, "--help"] for words in PAGES),
    ]
    runs += [[command, "a", "--xyzzy"] for command in COMMANDS] + [
        ["train", "--ppo.clip", "x"],
        ["train", "cartpol"],
        ["watch", "a"],
    ]
    code = (
        "import sys, contextlib, io\nimport lockstep\nfrom lockstep.cli.main import main\n"
        f"for words in {runs!r}:\n"
        "    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):\n"
        "        with contextlib.suppress(SystemExit):\n"
        "            main(words)\n"
        "    assert 'torch' not in sys.modules, words\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")

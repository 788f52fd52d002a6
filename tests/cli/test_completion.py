"""Completion of command lines: the candidates, and the scripts in real shells."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

from lockstep.cli.candidates import _CONFIG_SECTIONS, find_candidates
from lockstep.cli.main import COMMANDS, main
from lockstep.config.fields import RESUMABLE_FIELDS


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lockstep tr", {"train"}),
        ("lockstep train cartpole-", {"cartpole-no-velocity"}),
        ("lockstep train --env.engine gymnasium-", {"gymnasium-vector", "gymnasium-async"}),
        ("lockstep train --env.engine gymnasium --run.loggers tensorboard w", {"wandb"}),
        ("lockstep train --policy.sha", {"--policy.shared"}),
        ("lockstep train --policy.no-sha", {"--policy.no-shared"}),
        ("lockstep train --policy.shared f", {"false"}),
        ("lockstep train --rank", {"--ranks"}),
        ("lockstep train --seed ", set()),
        ("lockstep train --seed 3 reach", {"reacher"}),
        ("lockstep presets rea", {"reacher"}),
        ("lockstep bench s", {"scaling", "simulate"}),
        ("lockstep bench simulate fir", {"first"}),
        ("lockstep bench scaling --env.cou", {"--env.count"}),
        ("lockstep plot --over ", {"steps", "seconds"}),
        ("lockstep plot --over steps fir", {"first"}),
        ("lockstep watch ", {"first", "second"}),
        ("lockstep check --ppo", set()),
        ("lockstep check Reac", {"Reacher-v5"}),
        ("lockstep train --env Cart", {"CartPole-v1"}),
        ("lockstep train --env.id pendulum-s", {"pendulum-sparse"}),
        ("lockstep train --policy.distribution ga", {"gaussian", "gaussian-state-std"}),
        ("lockstep train --policy.core m", {"mingru"}),
        ("lockstep train --plan ", {"coupled", "one-player", "one-trainer", "ranks", "1:1"}),
        ("lockstep train --plan.kind one", {"one-player", "one-trainer"}),
        ("lockstep resume first --plan c", {"coupled"}),
        ("lockstep eval ", {"first", "second"}),
        ("lockstep eval first ", set()),
        ("lockstep eval --episodes 3 --sample first ", set()),
        ("lockstep eval --episodes=3 ", {"first", "second"}),
        ("lockstep eval --episodes 3 --sample ", {"first", "second"}),
        ("lockstep diff first ", {"first", "second"}),
        ("lockstep diff first second ", set()),
        ("lockstep plot first --over steps ", {"first", "second"}),
        ("lockstep report first ", {"first", "second"}),
        ("lockstep train cartpole --ranks 2 ", set()),
        ("lockstep train --run.loggers tensorboard wandb --seed 3 reach", {"reacher"}),
        ("lockstep sweep --prune cartpole-", {"cartpole-no-velocity"}),
        ("lockstep check --env.opt", {"--env.options"}),
        ("lockstep unknown ", set()),
        ("lockstep completion z", {"zsh"}),
    ],
)
def test_candidates(line: str, expected: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.json").touch()
    (tmp_path / "runs" / "third").mkdir()
    monkeypatch.chdir(tmp_path)
    assert set(find_candidates(line.split(" ")[1:])) == expected


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_candidates(command: str) -> None:
    """Their names are flags of the command, with the flags of the config where the command takes them."""
    words = [command, "scaling"] if command == "bench" else [command]
    flags = set(find_candidates([*words, "-"]))
    assert "--help" in flags
    takes_config = hasattr(import_module(f"lockstep.cli.{command}"), "parse_flags") or command == "bench"
    assert takes_config == (command in {*_CONFIG_SECTIONS, "resume"})
    assert ("--env.id" in flags) == (command in _CONFIG_SECTIONS)


def test_resume_completes_the_fields_that_may_change() -> None:
    flags = {flag.removeprefix("--").replace("-", "_") for flag in find_candidates(["resume", "--"])}
    assert {field if field != "plan.kind" else "plan" for field in RESUMABLE_FIELDS} <= flags
    assert "ppo.clip" not in flags


@pytest.fixture
def shell_environ(environ: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Variables for a shell in which `lockstep` is the command of this checkout."""
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "lockstep"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m lockstep "$@"\n')
    program.chmod(0o755)
    return environ | {"PATH": os.pathsep.join([str(program.parent), environ["PATH"]]), "HOME": str(tmp_path)}


def test_completion_in_bash(shell_environ: dict[str, str], tmp_path: Path) -> None:
    code = """eval "$(lockstep completion bash)"
    complete -p lockstep
    COMP_WORDS=(lockstep train --env.engine gymnasium-); COMP_CWORD=3; _lockstep; echo "${COMPREPLY[*]}"
    COMP_WORDS=(lockstep t); COMP_CWORD=1; _lockstep; echo "${COMPREPLY[*]}"
    """
    done = subprocess.run(
        ["bash", "-c", code], env=shell_environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.splitlines() == [
        "complete -o default -F _lockstep lockstep",
        "gymnasium-vector gymnasium-async",
        "train",
    ], done.stderr


@pytest.mark.command("fish")
def test_completion_in_fish(shell_environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").touch()
    lines = (
        "lockstep train --env.engine gymnasium-",
        "lockstep tr",
        "lockstep plot --over ",
        "lockstep train --config con",
    )
    code = "lockstep completion fish | source; " + "; ".join(f"complete -C '{line}'; echo" for line in lines)
    done = subprocess.run(
        ["fish", "-c", code], env=shell_environ, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    engines, commands, axes, files = done.stdout.strip("\n").split("\n\n")
    assert engines.split() == ["gymnasium-async", "gymnasium-vector"], done.stderr
    assert commands == f"train\t{COMMANDS['train']}"
    assert axes.split() == ["seconds", "steps"]
    assert files == "config.yaml"


@pytest.mark.command("zsh")
def test_completion_in_zsh(shell_environ: dict[str, str], tmp_path: Path) -> None:
    """A Tab in a terminal completes a command, and lists several values."""
    process, terminal = pty.fork()
    if process == 0:
        os.chdir(tmp_path)
        os.execve(shutil.which("zsh") or "", ["zsh", "-f", "-i"], shell_environ | {"TERM": "dumb", "PS1": "> "})
    try:
        os.write(terminal, b'autoload -U compinit; compinit -u -D; eval "$(lockstep completion zsh)"; echo rea""dy\n')
        wait_for(terminal, "ready")
        os.write(terminal, b"lockstep tra\t")
        wait_for(terminal, "lockstep train ")
        os.write(terminal, b"--env.engine gymnasium-\t\t")
        wait_for(terminal, "gymnasium-vector")
    finally:
        os.close(terminal)
        os.waitpid(process, 0)


def wait_for(terminal: int, text: str) -> None:
    """Read from the terminal until `text` appears."""
    output, end = "", time.monotonic() + 60
    while text not in output and time.monotonic() < end:
        if select.select([terminal], [], [], 1)[0]:
            output += os.read(terminal, 4096).decode(errors="replace")
            output = re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\x07", "", output)
    assert text in output


def test_unknown_shell_is_reported_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "tcsh"]) == 2
    assert capsys.readouterr().err == "lockstep: SHELL is 'tcsh': it must be one of bash, zsh, fish\n"

import os
import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep.cli import doctor
from lockstep.cli.main import COMMANDS, main
from lockstep.config import VERSION
from lockstep.run.folder import RunFolder

SOURCE = Path(lockstep.__file__).parents[1]


def run(*words: str, code: str | None = None, **variables: str) -> subprocess.CompletedProcess[str]:
    start = ["-c", code] if code else ["-m", "lockstep"]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE), **variables}
    return subprocess.run(
        [sys.executable, *start, *words], capture_output=True, text=True, env=environment, check=False
    )


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command} " in text for command in COMMANDS)
    assert max(map(len, text.splitlines())) <= 80 + 10


def test_missing_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage" in capsys.readouterr().out


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"lockstep {lockstep.__version__}\n")


def test_message_about_an_unknown_command_names_the_nearest() -> None:
    done = run("trian")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "lockstep: trian: unknown command; did you mean train?\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = main([command, "--help"])
    except SystemExit as end:
        code = end.code
    assert code == 0
    assert capsys.readouterr().out.startswith(f"usage: lockstep {command}")


@pytest.mark.parametrize(
    "words", [["--help"], ["presets"], ["config", "cartpole"], ["digest", "nowhere"], ["diff", "nowhere", "nowhere"]]
)
def test_quick_commands_do_not_import_torch(words: list[str]) -> None:
    code = "import sys; from lockstep.cli.main import main; main(sys.argv[1:]); sys.exit(40 + ('torch' in sys.modules))"
    assert run(*words, code=code).returncode == 40


def test_closed_pipe_prints_no_error() -> None:
    words = [sys.executable, "-m", "lockstep", "presets", "cartpole"]
    reader, writer = os.pipe()
    os.close(reader)
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    done = subprocess.run(words, stdout=writer, stderr=subprocess.PIPE, text=True, env=environment, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_terminal_without_utf8_gets_question_marks() -> None:
    done = run("train", "--help", PYTHONIOENCODING="ascii")
    assert done.returncode == 0
    assert "--ppo.learning-rate" in done.stdout


def fake_command(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr("lockstep.cli.presets.main", fail)


def test_ctrl_c_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    fake_command(monkeypatch, KeyboardInterrupt())
    assert main(["presets"]) == 130
    assert capsys.readouterr().err == "lockstep: interrupted\n"


def test_multiline_message_is_printed_as_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_command(monkeypatch, ValueError("a\n  b"))
    assert main(["presets"]) == 2
    assert capsys.readouterr().err == "lockstep: a b\n"


def test_unexpected_exception_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_command(monkeypatch, RuntimeError("?"))
    with pytest.raises(RuntimeError):
        main(["presets"])


def test_presets_lists_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    done = run("presets")
    assert done.returncode == 0
    assert "cartpole" in done.stdout
    assert main(["presets", "cartpole"]) == 0
    assert "id: CartPole-v1" in capsys.readouterr().out


def test_unknown_preset_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["presets", "cartpol"]) == 2
    assert capsys.readouterr().err == "lockstep: cartpol: unknown preset; did you mean cartpole?\n"


def test_envs_lists_families_and_engines() -> None:
    done = run("envs")
    assert done.returncode == 0
    assert "classic control\n" in done.stdout
    assert any(line.split()[:1] == ["CartPole-v1"] for line in done.stdout.splitlines())


def test_doctor_finds_this_installation_working() -> None:
    done = run("doctor")
    assert done.returncode == 0
    assert "training works here" in done.stdout


def test_doctor_names_what_is_broken(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "safetensors", None)
    assert doctor.main([]) == 1
    assert "broken: safetensors can't be imported" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["track", "a"], "track: unknown command; did you mean train?"),
        (["digest"], "RUN is missing; see lockstep digest --help"),
        (["digest", "a", "--itration", "1"], "--itration: unknown flag; did you mean --iteration?"),
        (["digest", "a", "b"], "b: unexpected argument; see lockstep digest --help"),
        (["digest", "a", "--iteration", "0"], "--iteration is '0': it must be a whole number, at least 1"),
        (["eval", "a", "--episodes", "x"], "--episodes is 'x': it must be a whole number, at least 1"),
        (["diff", "a"], "RUN_B is missing; see lockstep diff --help"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    words: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert capsys.readouterr() == ("", f"lockstep: {line}\n")


@pytest.mark.parametrize("command", ["diff", "eval", "export", "plot", "report", "resume", "verify", "watch"])
def test_a_run_of_a_newer_version_is_refused_in_one_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = RunFolder.create(tmp_path / "run", {"version": VERSION + 1, "env": {"id": "CartPole-v1"}}, {})
    (folder.path / "metrics.jsonl").write_text('{"iteration": 1, "digest": "0", "env_steps": 64, "return_mean": 9.0}\n')
    assert main([command, *[str(folder.path)] * (2 if command == "diff" else 1)]) == 2
    line = f"config version {VERSION + 1} is newer than this lockstep reads ({VERSION}): upgrade lockstep"
    assert capsys.readouterr() == ("", f"lockstep: {folder.path / 'config.json'}: {line}\n")

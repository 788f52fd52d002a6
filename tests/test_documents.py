"""Check that lockstep accepts the commands in the documents."""

import re
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from tests.pages.blocks import DOCUMENTS, ROOT, blocks

from lockstep.bench import comparison, scaling, throughput
from lockstep.cli import bench, bench_simulate, dashboard, doctor, plot, report, sweep, train, watch
from lockstep.config import Config

COMMAND = re.compile(r"^(?:torchrun --nproc-per-node (\d+) -m )?lockstep train (.*)$", re.MULTILINE)
PLOT = re.compile(r"^lockstep plot (.*)$", re.MULTILINE)
WATCH = re.compile(r"^lockstep watch ([^>\n]*)", re.MULTILINE)
REPORT = re.compile(r"^lockstep report (.*)$", re.MULTILINE)
DASHBOARD = re.compile(r"^lockstep dashboard(.*)$", re.MULTILINE)
SWEEP = re.compile(r"^lockstep sweep (.*)$", re.MULTILINE)
BENCH = re.compile(r"^lockstep bench (.*)$", re.MULTILINE)


def commands() -> list[str]:
    """Return the arguments of all `lockstep train` commands, with `--ranks` for those under torchrun. tests/clusters and
    tests/store have those with `--on` and `--run.store`."""
    arguments = {
        f"--ranks {ranks} {words}" if ranks else words
        for document in DOCUMENTS
        for ranks, words in COMMAND.findall(document.read_text(encoding="utf-8"))
        if "--on " not in words and "s3://" not in words
    }
    return sorted(arguments)


@pytest.mark.extra("Box2D", "mujoco")
@pytest.mark.parametrize("command", commands())
def test_train_commands_create_a_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if re.search("cuda|nccl|player-device", command) and not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    for block in (block for document in DOCUMENTS for block in blocks(document) if block.title):
        (tmp_path / str(block.title)).write_text(block.text)
    monkeypatch.setattr(train, "start", lambda *_: 0)
    assert train.main(shlex.split(command, comments=True)) == 0


def plots() -> list[str]:
    """Return the arguments of all `lockstep plot` commands."""
    return sorted({words for document in DOCUMENTS for words in PLOT.findall(document.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("command", plots())
def test_plot_commands_are_valid(command: str) -> None:
    assert plot.read(shlex.split(command, comments=True)).run


def watches() -> list[str]:
    """Return the arguments of all `lockstep watch` commands."""
    return sorted({words for document in DOCUMENTS for words in WATCH.findall(document.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("command", watches())
def test_watch_commands_are_valid(command: str) -> None:
    assert watch.read(shlex.split(command, comments=True)).run in ("first", None)


def reports() -> list[str]:
    """Return the arguments of all `lockstep report` commands."""
    return sorted({words for document in DOCUMENTS for words in REPORT.findall(document.read_text(encoding="utf-8"))})


@pytest.mark.parametrize("command", reports())
def test_report_commands_are_valid(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "locate", accept)
    with pytest.raises(Accepted):
        report.main(shlex.split(command, comments=True))


def dashboards() -> list[str]:
    """Return the arguments of all `lockstep dashboard` commands."""
    return sorted(
        {words for document in DOCUMENTS for words in DASHBOARD.findall(document.read_text(encoding="utf-8"))}
    )


@pytest.mark.extra("starlette", "uvicorn")
@pytest.mark.parametrize("command", dashboards())
def test_dashboard_commands_are_valid(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("experiments").mkdir()
    monkeypatch.setattr("lockstep.dashboard.server.serve", accept)
    with pytest.raises(Accepted):
        dashboard.main(shlex.split(command, comments=True))


def sweeps() -> list[str]:
    """Return the arguments of all `lockstep sweep` commands."""
    return sorted({words for document in DOCUMENTS for words in SWEEP.findall(document.read_text(encoding="utf-8"))})


@pytest.mark.extra("Box2D", "optuna")
@pytest.mark.parametrize("command", sweeps())
def test_sweep_commands_are_valid(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lockstep.sweep.sweep.Sweep.opened", accept)
    with pytest.raises(Accepted):
        sweep.main(shlex.split(command, comments=True))


class Accepted(Exception):
    """The command was accepted; its work would start now."""


def accept(*arguments: object) -> None:
    """Replace the first function that does work: raise Accepted."""
    raise Accepted


def benchmarks() -> list[str]:
    """Return the arguments of all `lockstep bench` commands."""
    return sorted({words for document in DOCUMENTS for words in BENCH.findall(document.read_text(encoding="utf-8"))})


@pytest.mark.extra("Box2D", "mujoco")
@pytest.mark.parametrize("command", benchmarks())
def test_bench_commands_are_valid(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first_calls = (
        (throughput, "measure"),
        (scaling, "measure"),
        (comparison, "find_peers"),
        (bench_simulate, "locate"),
    )
    for module, function in first_calls:
        monkeypatch.setattr(module, function, accept)
    with pytest.raises(Accepted):
        bench.main(shlex.split(command, comments=True))


def test_every_extra_is_documented_and_checked_by_doctor() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = set(project["optional-dependencies"]) - {"dev", "docs"}
    table = (
        (ROOT / "docs" / "index.md").read_text(encoding="utf-8").partition("| extra | adds |")[2].partition("\n\n")[0]
    )
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == extras
    assert {extra for _, extra, _ in doctor._OPTIONAL.values()} == extras - {"all"}


def test_every_section_of_the_config_is_documented() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    table = page.partition("| section | decides |")[2].partition("\n\n")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {field.name for field in fields(Config)}
    assert len(fields(Config)) == 8
    assert "eight sections" in page

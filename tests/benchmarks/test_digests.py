"""Digests of the first iterations of presets, which benchmarks/digests.py has recorded on another processor."""

import json
from pathlib import Path

import pytest
from tests.recorded import packages_problem

from lockstep.processes.portable import portable_problem

CHEAP = [("cartpole", "on"), pytest.param("cartpole", "off", marks=pytest.mark.exhaustive)]


@pytest.mark.slow
@pytest.mark.skipif((packages_problem() or portable_problem()) is not None, reason="other packages or instructions")
@pytest.mark.parametrize(("preset", "compiled"), CHEAP)
def test_preset_has_the_recorded_digest(
    run_cli, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str, compiled: str
) -> None:
    monkeypatch.syspath_prepend(root / "benchmarks")
    import digests

    finished = run_cli(*digests.words(preset, compiled, tmp_path), cwd=root / "benchmarks")
    assert finished.rc == 0, finished
    recorded = json.loads(digests.RESULTS.read_text())[preset][f"compile {compiled}"]["digest"]
    assert digests.last_digest(tmp_path / preset) == recorded, (
        "if the change is deliberate, remove benchmarks/digests.json, run `python benchmarks/digests.py`, and explain it in CHANGELOG.md"
    )


def test_processors_that_give_the_recorded_digest_are_added(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(root / "benchmarks")
    import digests

    monkeypatch.setattr(digests, "RESULTS", tmp_path / "digests.json")
    for processor, digest in (("first", "aa"), ("second", "aa"), ("third", "bb"), ("first", "aa")):
        assert digests.record("cartpole", "on", digest, processor) == "aa"
    assert json.loads(digests.RESULTS.read_text()) == {
        "cartpole": {"compile on": {"digest": "aa", "processors": ["first", "second"]}}
    }

"""Digests of the first iterations of presets, which benchmarks/digests.py has recorded for some types of processor."""

import json
from pathlib import Path

import pytest

CHEAP = ("cartpole",)


@pytest.mark.slow
@pytest.mark.parametrize("preset", CHEAP)
def test_preset_has_the_recorded_digest(
    run_cli, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preset: str
) -> None:
    monkeypatch.syspath_prepend(root / "benchmarks")
    import digests

    recorded = json.loads(digests.RESULTS.read_text())[preset]["compile off"]
    if digests.key() not in recorded:
        pytest.skip(f"no digest is recorded for {digests.key()}: run `python benchmarks/digests.py`")
    finished = run_cli(*digests.words(preset, "off", tmp_path), cwd=root / "benchmarks")
    assert finished.rc == 0, finished
    assert digests.last_digest(tmp_path / preset) == recorded[digests.key()], (
        "if the change is deliberate, remove benchmarks/digests.json, run `python benchmarks/digests.py`, and explain it in CHANGELOG.md"
    )

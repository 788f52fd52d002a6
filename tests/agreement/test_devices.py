"""Bit-identical results on a GPU: every policy, curiosity method and data setting, on one rank and with players."""

import json
from pathlib import Path

import pytest
from tests.agreement.matrix import Trained

pytestmark = [pytest.mark.slow, pytest.mark.gpu, pytest.mark.serial]


@pytest.mark.parametrize("matrix", ["plans", "spaces", "curiosity"])
def test_players_on_a_gpu_give_the_digests_of_one_rank(
    trained: Trained, matrix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCKSTEP_TEST_DEVICE", "cuda")
    monkeypatch.setenv("LOCKSTEP_TEST_ITERATIONS", "2")
    alone, pair = (trained(tmp_path / plan, matrix, plan, "shared", "torch") for plan in ("solo", "2:1"))
    assert [column for column in alone if pair[column] != alone[column]] == []
    for column in alone:
        runtime = json.loads((tmp_path / "2:1" / column / "config.json").read_text())["runtime"]
        assert runtime["device"] == "cuda"

from pathlib import Path
from typing import Any

import pytest

from lockstep.dashboard.machine import machine_load


def test_load_of_this_machine() -> None:
    load: Any = machine_load()
    assert 0 < load["cpu"][0] < load["cpu"][1]
    assert 0 < load["memory"][0] < load["memory"][1]
    assert machine_load()["cpu"][1] >= load["cpu"][1]  # type: ignore[index]


def test_counters_of_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  10 1 5 100 20 2 3 4 99 99\ncpu0 1 1 1 1\n")
    (tmp_path / "meminfo").write_text("MemTotal:  8 kB\nMemFree:  1 kB\nMemAvailable:  2 kB\nHugePages_Total:  0\n")
    load = machine_load(tmp_path)
    assert (load["cpu"], load["memory"]) == ([25, 145], [6 * 1024, 8 * 1024])


@pytest.mark.parametrize("text", ["", "cpu x", "cpu 1 2"])
def test_another_operating_system(text: str, tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(text)
    assert set(machine_load(tmp_path)) == {"host", "cores"}

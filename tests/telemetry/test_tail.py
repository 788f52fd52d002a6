"""Metrics that another process is writing."""

from pathlib import Path

from lockstep.run.folder import RunFolder
from lockstep.telemetry.tail import MetricsTail


def test_what_is_added_is_given_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    follower = MetricsTail(path)
    assert follower.read() == ([], False)  # there is none yet
    path.write_text('{"iteration": 1}\n{"itera')
    assert follower.read() == ([{"iteration": 1}], True)
    assert follower.read() == ([], False)  # half a line is none
    with path.open("a") as file:
        file.write('tion": 2}\n7\n{broken\n\xe4\n{"iteration": 3}\n')
    assert follower.read() == ([{"iteration": 2}, {"iteration": 3}], False)


def test_a_run_that_goes_back_is_read_anew(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {}, {})
    path = folder.path / "metrics.jsonl"
    path.write_text("".join(f'{{"iteration": {number}}}\n' for number in range(1, 6)))
    follower = MetricsTail(path)
    follower.read()
    folder.cut_metrics(2)
    with path.open("a") as file:
        file.write('{"iteration": 3}\n{"iteration": 4}\n{"iteration": 5}\n{"iteration": 6}\n')  # longer than it was
    rows, anew = follower.read()
    assert ([row["iteration"] for row in rows], anew) == ([1, 2, 3, 4, 5, 6], True)
    path.write_text("")  # shorter, in place
    assert follower.read() == ([], True)

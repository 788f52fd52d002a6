"""The reader of metrics that another process is writing."""

from pathlib import Path

from lockstep.run.folder import RunFolder
from lockstep.telemetry.tail import MetricsTail


def test_every_row_is_returned_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    tail = MetricsTail(path)
    assert tail.read() == ([], False)  # the file does not exist yet
    path.write_text('{"iteration": 1}\n{"itera')
    assert tail.read() == ([{"iteration": 1}], True)
    assert tail.read() == ([], False)  # an incomplete line
    with path.open("a") as file:
        file.write('tion": 2}\n7\n{broken\n\xe4\n{"iteration": 3}\n')
    assert tail.read() == ([{"iteration": 2}, {"iteration": 3}], False)


def test_truncated_file_is_read_again_from_the_start(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", {}, {})
    path = folder.path / "metrics.jsonl"
    path.write_text("".join(f'{{"iteration": {number}}}\n' for number in range(1, 6)))
    tail = MetricsTail(path)
    tail.read()
    folder.truncate_metrics(2)
    with path.open("a") as file:
        # now the file is longer than before
        file.write('{"iteration": 3}\n{"iteration": 4}\n{"iteration": 5}\n{"iteration": 6}\n')
    rows, restarted = tail.read()
    assert ([row["iteration"] for row in rows], restarted) == ([1, 2, 3, 4, 5, 6], True)
    path.write_text("")  # the same file, shorter
    assert tail.read() == ([], True)


def test_long_file_is_read_in_blocks(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = [f'{{"iteration": {number}}}\n' for number in range(1, 10)]
    path.write_text("".join(lines[:5]) + "x" * 200 + "\n" + "[" * 99 + "\n" + "".join(lines[5:]) + '{"itera')
    tail, numbers, blocks = MetricsTail(path, limit=64), [], 0
    while not blocks or tail.more:
        numbers += [row["iteration"] for row in tail.read()[0]]
        blocks += 1
    assert numbers == list(range(1, 10))
    assert blocks > 5
    assert tail.skipped >= 2  # the long line, in pieces, and the brackets
    assert tail.read() == ([], False)

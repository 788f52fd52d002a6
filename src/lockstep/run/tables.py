"""Tables as CSV and JSON files."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lockstep.files import write_atomically

__all__ = ["write_rows"]


def write_rows(folder: Path, name: str, rows: Sequence[Mapping[str, object]], about: Mapping[str, object]) -> None:
    """Write `name.csv`, with empty cells for None, and `name.json`, with the entries of `about` and the `rows`, each atomically."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows([{column: _plain(value) for column, value in row.items()} for row in rows])
    write_atomically(folder / f"{name}.csv", text.getvalue().encode())
    write_atomically(folder / f"{name}.json", f"{json.dumps({**about, 'rows': rows}, indent=1)}\n".encode())


def _plain(value: object) -> object:
    return json.dumps(value) if isinstance(value, bool | list | dict) else value

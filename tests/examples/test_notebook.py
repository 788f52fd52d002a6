"""Run the cells of the notebook in IPython, and check that it is stored without outputs."""

import json
import os
import sys
from pathlib import Path

import pytest
from tests.warm import Warm

NOTEBOOK = Path(__file__).parents[2] / "examples" / "lockstep.ipynb"
PROGRAM = """
import json, sys
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for source in json.loads(sys.argv[1]):
    shell.run_cell(source).raise_error()
"""


def sources(kind: str) -> list[str]:
    """Return the text of the cells of a kind."""
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def test_notebook_is_stored_without_outputs() -> None:
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["metadata"]["kernelspec"]["name"]) == (4, "python3")
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell for cell in cells if cell["outputs"] or cell["execution_count"] is not None] == []
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.extra("IPython", "matplotlib", "imageio_ffmpeg", "pygame")
def test_cells_of_the_notebook_run(tmp_path: Path, environ: dict[str, str], warm: Warm) -> None:
    install, *cells = sources("code")
    assert install == '%pip install -q "lockstep-rl[video,report]"'
    small = [cell.replace("60_000", "4_096").replace("20_000", "4_096").replace("10_000", "2_048") for cell in cells]
    (tmp_path / "notebook.py").write_text(PROGRAM)
    (tmp_path / "lockstep").write_text(f'#!/bin/sh\nexec {sys.executable} -m lockstep "$@"\n')
    (tmp_path / "lockstep").chmod(0o755)
    path = os.pathsep.join([str(tmp_path), environ["PATH"]])
    variables = environ | {"PATH": path, "IPYTHONDIR": str(tmp_path / "ipython"), "MPLBACKEND": "agg"}
    started = warm.start(json.dumps(small), cwd=tmp_path, environ=variables, module="notebook")
    try:
        done = started.wait(280)
    finally:
        started.kill()
    assert done.rc == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = done.stdout.splitlines()
    assert lines[-1] == "True"
    assert lines[-2] == lines[-3]
    assert "<IPython.core.display.Video object>" in done.stdout
    assert len(list(tmp_path.glob("runs/*/videos/*.mp4"))) == 1

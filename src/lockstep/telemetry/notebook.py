"""Live view of a run in a Jupyter or Colab notebook: one output of the cell, which is replaced in place."""

import io
import sys
from typing import Any

from lockstep.telemetry.screen import RunFacts, draw
from lockstep.telemetry.status import RunStatus

__all__ = ["NotebookView", "in_notebook"]

_WIDTH = 100
"""Columns of the view. A notebook scrolls wider lines sideways."""
_HTML = '<pre style="line-height:normal;white-space:pre;overflow-x:auto">{code}</pre>'


def in_notebook() -> bool:
    """Return True if this program runs in a notebook, as far as rich detects it."""
    if "IPython" not in sys.modules:
        return False
    from rich.console import Console

    return Console().is_jupyter


class NotebookView:
    """View that needs no widgets: IPython replaces a displayed output by its id, without clearing the cell, so nothing flickers."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, about_run: RunFacts, status: RunStatus, state: str = "") -> None:
        """Update `status` with its pending rows and replace the view. `state` is the text of the line "state"."""
        from IPython.display import display
        from rich.console import Console

        status.update()
        view = draw(status, about_run, state, _WIDTH)
        console = Console(record=True, file=io.StringIO(), width=_WIDTH, force_jupyter=False, force_terminal=True)
        console.print(view)
        content = {"text/plain": view.plain, "text/html": console.export_html(inline_styles=True, code_format=_HTML)}
        if self._handle is None:
            self._handle = display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def close(self) -> None:
        """Leave the last view in the notebook."""

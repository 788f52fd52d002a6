"""Web application of the dashboard: the page, the list of runs, their curves and their videos."""

import json
import sys
import traceback
from collections import OrderedDict
from importlib.resources import files
from pathlib import Path
from threading import Lock

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import Route

from lockstep.dashboard.curves import CurvesFile, Position
from lockstep.dashboard.guard import Guard
from lockstep.dashboard.machine import machine_load
from lockstep.dashboard.runs import Runs, key, printable_error, signature, videos
from lockstep.run.evaluations import EVALUATIONS
from lockstep.run.folder import RunFolder
from lockstep.telemetry.status import number

__all__ = ["make_app"]

_HOSTS = ["127.0.0.1", "localhost"]
"""Values of the Host header, with any port: a tunnel may have another port."""
_MEDIA_TYPES = {".js": "text/javascript", ".css": "text/css"}
_MAX_OPEN = 32
"""Largest number of runs whose curves are kept in memory, 5 MB each."""


class _OpenRun:
    """Curves of one run."""

    def __init__(self, path: Path) -> None:
        self.metrics = CurvesFile(path / "metrics.jsonl")
        self.evaluations = CurvesFile(path / EVALUATIONS)


class _Dashboard:
    """Handlers of requests. Starlette calls them in threads; the lock protects all that they change."""

    def __init__(self, root: Path, token: str) -> None:
        static = files("lockstep.dashboard") / "static"
        self._page = (static / "page.html").read_text(encoding="utf-8").replace("TOKEN", token)
        self._files = {
            file.name: file.read_bytes() for file in static.iterdir() if Path(file.name).suffix in _MEDIA_TYPES
        }
        self._runs = Runs(root)
        self._open: OrderedDict[Path, _OpenRun] = OrderedDict()
        self._lock = Lock()

    def page(self, _: Request) -> Response:
        return HTMLResponse(self._page)

    def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self._files:
            raise HTTPException(404)
        return Response(self._files[name], media_type=_MEDIA_TYPES[Path(name).suffix])

    def runs(self, _: Request) -> Response:
        with self._lock:
            rows = self._runs.rows()
        return _json({"folder": str(self._runs.root), "machine": machine_load(), "runs": rows})

    def run(self, request: Request) -> Response:
        """Return the points of the curves of a run after `position`, and its videos."""
        path = self._path(request)
        try:
            with self._lock:
                return _json(self._read(path, _position(request.query_params.get("position", ""))))
        except (OSError, ValueError) as error:
            return _json({"error": printable_error(error)})

    def video(self, request: Request) -> Response:
        path = self._path(request)
        try:
            signature(self._runs.root, path)
            file = videos(path)[request.path_params["video"]]
        except (OSError, ValueError, KeyError):
            raise HTTPException(404) from None
        return FileResponse(file, media_type="video/mp4")

    def _path(self, request: Request) -> Path:
        with self._lock:
            path = self._runs.path(request.path_params["run"])
            if path is None:  # the page may be older than the server
                self._runs.rows()
                path = self._runs.path(request.path_params["run"])
        if path is None:
            raise HTTPException(404)
        return path

    def _read(self, path: Path, position: Position) -> dict[str, object]:
        version = key(repr(signature(self._runs.root, path)))
        run = self._open.pop(path, None) or _OpenRun(path)
        self._open[path] = run
        while len(self._open) > _MAX_OPEN:
            self._open.popitem(last=False)
        for file in (run.metrics, run.evaluations):
            file.update()
        section = RunFolder(path).tree().get("run")
        return {
            "version": version,
            "more": run.metrics.more or run.evaluations.more,
            "skipped": run.metrics.skipped + run.evaluations.skipped,
            "goal": number(section.get("solved_return")) if isinstance(section, dict) else None,
            "curves": run.metrics.curves.since(position),
            "evaluations": run.evaluations.curves.since(Position()),
            "videos": [{"key": name, "name": file.name} for name, file in videos(path).items()],
        }


def make_app(root: Path, token: str) -> Starlette:
    """Return the application that shows the runs in `root` to those who have `token`."""
    dashboard = _Dashboard(root, token)
    routes = [
        Route("/", dashboard.page),
        Route("/static/{name}", dashboard.static),
        Route("/runs", dashboard.runs),
        Route("/runs/{run}", dashboard.run),
        Route("/runs/{run}/videos/{video}", dashboard.video),
    ]
    middleware = [
        Middleware(Guard, token=token),
        Middleware(TrustedHostMiddleware, allowed_hosts=_HOSTS, www_redirect=False),
    ]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={Exception: _report})


def _report(_: Request, error: Exception) -> Response:
    traceback.print_exception(error, file=sys.stderr)
    return PlainTextResponse("The dashboard failed; its terminal shows the error.\n", 500)


def _position(text: str) -> Position:
    try:
        return Position(*map(int, text.split(".")))
    except (ValueError, TypeError):
        return Position()


def _json(tree: dict[str, object]) -> Response:
    return Response(json.dumps(tree, allow_nan=False), media_type="application/json")

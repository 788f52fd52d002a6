"""Fake server of Weights & Biases on the loopback interface, which stores what the client uploads."""

import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0" * 40


class CurvesServer(ThreadingHTTPServer):
    """Server with runs by id, points of curves in order, and files by name."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.runs: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[str]] = {}
        self.files: dict[str, bytes] = {}
        self.finished: list[str] = []

    def answer(self, name: str, variables: dict[str, Any]) -> dict[str, Any]:
        """Answer a GraphQL query or mutation of the client."""
        me = {"id": "me", "name": "me"}
        if name == "Viewer":
            return {"viewer": {**me, "entity": "me", "username": "me", "flags": "{}", "teams": {"edges": []}}}
        if name == "RunResumeStatus":
            return {
                "model": {
                    "id": "p",
                    "name": variables["project"],
                    "entity": me,
                    "bucket": self.bucket(variables["name"]),
                }
            }
        if name == "UpsertBucket":
            self.runs.setdefault(variables["name"], {}).update(
                {key: value for key, value in variables.items() if value}
            )
            project = {"id": "p", "name": variables["project"], "entity": me}
            return {
                "upsertBucket": {"bucket": {**self.bucket(variables["name"]), "project": project}, "inserted": True}
            }
        if name == "CreateRunFiles":
            files = [{"name": file, "uploadUrl": f"{self.address}/put/{file}"} for file in variables["files"]]
            return {"createRunFiles": {"runID": variables["run"], "uploadHeaders": [], "files": files}}
        return {}

    def bucket(self, run: str) -> dict[str, Any] | None:
        """Return a run in the format of the queries, or None if it does not exist."""
        if run not in self.runs:
            return None
        points = self.history.get(run, [])
        counts = {"historyLineCount": len(points), "eventsLineCount": 0, "logLineCount": 0}
        tails = {
            "historyTail": json.dumps(points[-1:]),
            "eventsTail": "[]",
            "summaryMetrics": "{}",
            "wandbConfig": "{}",
        }
        shown = self.runs[run].get("displayName")
        return {"id": run, "name": run, "displayName": shown, "config": "{}", "tags": [], **counts, **tails}

    def stream(self, run: str, message: dict[str, Any]) -> None:
        """Store points of curves, and note the end of the run."""
        lines = message.get("files", {}).get("wandb-history.jsonl")
        if lines:
            points = self.history.setdefault(run, [])
            points[lines["offset"] :] = lines["content"]
        if message.get("complete"):
            self.finished.append(run)


class _Answers(BaseHTTPRequestHandler):
    server: CurvesServer
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self._body()
        if self.path == "/graphql":
            asked = json.loads(body)
            self._reply({"data": self.server.answer(asked["operationName"], asked.get("variables") or {})})
        elif self.path.endswith("/file_stream"):
            self.server.stream(self.path.split("/")[-2], json.loads(body))
            self._reply({"limits": {}})
        else:
            self._reply({})

    def do_PUT(self) -> None:
        self.server.files[self.path.removeprefix("/put/")] = self._body()
        self._reply({})

    def _body(self) -> bytes:
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(content) if self.headers.get("Content-Encoding") == "gzip" else content

    def _reply(self, tree: dict[str, Any]) -> None:
        content = json.dumps(tree).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print no log lines."""


@contextmanager
def serving() -> Iterator[CurvesServer]:
    """Run a server until the block ends."""
    with CurvesServer() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.shutdown()

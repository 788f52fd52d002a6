"""Fake of the Hub's API on the loopback interface: one user, models in memory, single commits."""

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import unquote

__all__ = ["TOKEN", "FakeHub", "serving"]

TOKEN = "hf_" + "standinstandinstandinstandin" + "42"
_LARGE = (".safetensors", ".mp4")
"""Suffixes of files that the Hub treats as large files, whatever their size."""


class FakeHub(ThreadingHTTPServer):
    """Server with the models that it stores and a log of its requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.models: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.reported_sizes: dict[str, int] = {}
        """False file sizes to report, by file name."""
        self.stored: dict[str, bytes] = {}
        """Contents of large files by their SHA-256. They are uploaded before the commit that refers to them."""
        self.requests: list[str] = []
        """Log of requests, each as `METHOD /path`."""
        self.failing: dict[str, int] = {}
        """HTTP status of requests that fail, by a part of `METHOD /path`."""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def commit(self, name: str) -> str:
        """Return the id of the current commit, a hash of the contents of the model."""
        return hashlib.sha1(repr(sorted(self.models[name].items())).encode()).hexdigest()

    def changes(self) -> list[str]:
        """Return the requests that change something."""
        return [line for line in self.requests if not line.startswith(("GET", "HEAD"))]


@contextmanager
def serving() -> Iterator[FakeHub]:
    with FakeHub() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Answers(BaseHTTPRequestHandler):
    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *words: object) -> None:
        pass

    def do_GET(self) -> None:
        self.answer()

    def do_HEAD(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(self.path.partition("?")[0])
        self.server.requests.append(f"{self.command} {path}")
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        failing = next(
            (status for part, status in self.server.failing.items() if part in self.server.requests[-1]), None
        )
        if failing or token not in ("", TOKEN):
            self.send(failing or 401, {"error": f"refused, {token}"})
        elif path == "/api/whoami-v2":
            self.send(200 if token else 401, {"type": "user", "name": "me", "orgs": []})
        elif path == "/api/validate-yaml":
            self.send(200, {"errors": [], "warnings": []})
        elif path == "/api/repos/create":
            self.create(json.loads(body))
        elif match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/(preupload|commit|revision)/([^/]+))?", path):
            self.about(match[1], match[2], match[3], body, token)
        elif path.endswith(".git/info/lfs/objects/batch"):
            self.batch(json.loads(body)["objects"])
        elif path.startswith("/large/"):
            self.server.stored[path.removeprefix("/large/")] = body
            self.send(200, {})
        elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            self.file(match[1], match[3], token)
        else:
            self.send(404, {"error": "not here"})

    def create(self, request: dict[str, Any]) -> None:
        name = f"{request['organization']}/{request['name']}"
        if not name.startswith("me/"):
            return self.send(403, {"error": "not yours"})
        exists = name in self.server.models
        if not exists:
            self.server.models[name] = {}
            private = request.get("private") or request.get("visibility") == "private"
            self.server.private |= {name} if private else set()
        return self.send(409 if exists else 200, {"url": f"{self.server.address}/{name}"})

    def about(self, name: str, resource: str | None, revision: str | None, body: bytes, token: str) -> None:
        files = self.server.models.get(name)
        if files is None or (name in self.server.private and not token):
            return self.send(401, {"error": "no"}, {"X-Error-Code": "RepoNotFound"})
        if resource == "preupload":
            requested = json.loads(body)["files"]
            modes = ["lfs" if file["path"].endswith(_LARGE) else "regular" for file in requested]
            answers = [
                {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}
                for file, mode in zip(requested, modes, strict=True)
            ]
            return self.send(200, {"files": answers})
        if resource == "commit":
            for line in map(json.loads, body.splitlines()):
                value = line["value"]
                if line["key"] == "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                elif line["key"] == "lfsFile":
                    files[value["path"]] = self.server.stored[value["oid"]]
                elif line["key"] == "deletedFile":
                    del files[value["path"]]
            commit = self.server.commit(name)
            url = f"{self.server.address}/{name}/commit/{commit}"
            return self.send(200, {"commitUrl": url, "commitOid": commit, "success": True})
        commit = self.server.commit(name)
        if revision not in (None, "main", commit):
            return self.send(404, {"error": "no"}, {"X-Error-Code": "RevisionNotFound"})
        sizes = {path: len(content) for path, content in files.items()} | self.server.reported_sizes
        siblings = [{"rfilename": path, "size": size} for path, size in sizes.items()]
        return self.send(200, {"id": name, "sha": commit, "private": name in self.server.private, "siblings": siblings})

    def batch(self, objects: list[dict[str, Any]]) -> None:
        """Answer with the upload addresses of large files."""
        hrefs = {item["oid"]: f"{self.server.address}/large/{item['oid']}" for item in objects}
        answers = [{**item, "actions": {"upload": {"href": hrefs[item["oid"]]}}} for item in objects]
        self.send(200, {"transfer": "basic", "objects": answers})

    def file(self, name: str, path: str, token: str) -> None:
        files = self.server.models.get(name, {})
        if name in self.server.private and not token:
            return self.send(401, {"error": "no"}, {"X-Error-Code": "RepoNotFound"})
        if path not in files:
            return self.send(404, {"error": "no"}, {"X-Error-Code": "EntryNotFound"})
        return self.send(
            200,
            files[path],
            {"ETag": f'"{hashlib.sha1(files[path]).hexdigest()}"', "X-Repo-Commit": self.server.commit(name)},
        )

    def send(self, status: int, content: object, headers: dict[str, str] | None = None) -> None:
        sent = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for key, value in {"Content-Length": str(len(sent)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(sent)

"""A Hub on 127.0.0.1: the few endpoints that making a repository and uploading a folder need."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar

USER = "somebody"
Server = TypeVar("Server", bound=ThreadingHTTPServer)


class Hub(ThreadingHTTPServer):
    """`repositories` holds the files of each by path; `writers` the tokens that may write, `readers` those that only
    read. Requests of `failing` paths (their ends) are answered with 503."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.created: list[dict] = []
        self.branches: list[str] = []
        self.commits: list[str] = []
        self.writers = {"hf_writer"}
        self.readers = {"hf_reader"}
        self.failing: str | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length") or 0)))

    def _serve(self, body: bytes) -> None:
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        parts = self.path.partition("?")[0].strip("/").split("/")
        if self.server.failing and self.path.endswith(self.server.failing):
            self._answer(503, {"error": "out of order"})
        elif token not in self.server.writers | self.server.readers:
            self._answer(401, {"error": "Invalid credentials in Authorization header"})
        elif parts[:2] == ["api", "models"]:
            self._model("/".join(parts[2:4]), parts[4:], body, may_write=token in self.server.writers)
        elif parts == ["api", "repos", "create"]:
            self._create(json.loads(body), may_write=token in self.server.writers)
        elif parts == ["api", "validate-yaml"]:
            self._answer(200, {"errors": [], "warnings": []})
        else:
            self._answer(404, {"error": f"no {self.path} here"})

    def _create(self, wanted: dict, *, may_write: bool) -> None:
        name = f"{wanted.get('organization') or USER}/{wanted['name']}"
        if not may_write:
            self._answer(403, {"error": "You don't have the rights to create a model under this namespace"})
            return
        known = name in self.server.repositories
        if not known:
            self.server.created.append(wanted)
        self.server.repositories.setdefault(name, {})
        self._answer(409 if known else 200, {"url": f"{self.server.endpoint}/{name}"})

    def _model(self, name: str, rest: list[str], body: bytes, *, may_write: bool) -> None:
        files = self.server.repositories.get(name)
        if files is None:
            self._answer(404, {"error": "Repository not found"})
        elif rest == [] or rest[0] == "revision":
            self._answer(200, {"id": name, "sha": "0" * 40, "private": False, "siblings": [], "tags": []})
        elif not may_write:
            self._answer(403, {"error": "This token may only read"})
        elif rest[0] == "auth-check":
            self._answer(200, {})
        elif rest[0] == "branch":
            self.server.branches.append(rest[1])
            self._answer(200, {})
        elif rest[0] == "preupload":
            wanted = [each["path"] for each in json.loads(body)["files"]]
            modes = [{"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": None} for path in wanted]
            self._answer(200, {"files": modes})
        elif rest[0] == "commit":
            for line in body.splitlines():
                change = json.loads(line)
                if change["key"] == "file":
                    files[change["value"]["path"]] = base64.b64decode(change["value"]["content"])
            self.server.commits.append(rest[1])
            url = f"{self.server.endpoint}/{name}/commit/{'1' * 40}"
            self._answer(200, {"commitUrl": url, "commitOid": "1" * 40, "pullRequestUrl": None})
        else:
            self._answer(404, {"error": f"no {self.path} here"})

    def _answer(self, code: int, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if code >= 400:
            self.send_header("X-Error-Message", content.get("error", ""))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """`server`, which serves until the end of the block."""
    with server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def hub_server() -> AbstractContextManager[Hub]:
    """A Hub that serves until the end of the block."""
    return serving(Hub())

"""A mirror of the Hugging Face Hub on 127.0.0.1: what downloading the files of a model needs."""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.hub_server import serving

COMMIT = "1" * 40


class Mirror(ThreadingHTTPServer):
    """`repositories` holds the files of each model by path; `requests` are the paths asked for. With `status` every
    request is answered with that."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.requests: list[str] = []
        self.status: int | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, folder: Path) -> None:
        self.repositories[name] = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}


class _Handler(BaseHTTPRequestHandler):
    server: Mirror

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        self.server.requests.append(path)
        parts = path.strip("/").split("/")
        files = self.server.repositories.get("/".join(parts[2:4] if parts[0] == "api" else parts[:2]))
        if self.server.status:
            self._answer(self.server.status, b"")
        elif files is None:
            self._answer(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif parts[:2] == ["api", "models"]:
            listed = [{"rfilename": name} for name in files]
            facts = {"id": "/".join(parts[2:4]), "sha": COMMIT, "siblings": listed, "tags": [], "private": False}
            tree = [{"type": "file", "path": name, "size": len(text), "oid": "0"} for name, text in files.items()]
            self._answer(200, json.dumps(tree if "tree" in parts else facts).encode())
        elif parts[2] == "resolve" and "/".join(parts[4:]) in files:
            content = files["/".join(parts[4:])]
            digest = hashlib.sha256(content).hexdigest()
            self._answer(200, content, {"ETag": f'"{digest}"', "X-Repo-Commit": COMMIT})
        else:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})

    def _answer(self, code: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def hub_mirror() -> AbstractContextManager[Mirror]:
    """A mirror that serves until the end of the block."""
    return serving(Mirror())

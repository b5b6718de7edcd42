"""A ModelScope on 127.0.0.1: listing the files of a model or dataset, and downloading them."""

from __future__ import annotations

import hashlib
import json
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from tests.hub_server import serving


class ModelScope(ThreadingHTTPServer):
    """`repositories` holds the files by path of each "models/OWNER/NAME" or "datasets/OWNER/NAME", by revision.

    `requests` are the paths asked for, `downloads` the files sent, whole or from a byte on. Files of `private`
    repositories need the `token`. Of `wrong` files another content is sent than is listed, of `cut` ones half, once.
    With `status` every request is answered with that.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.requests: list[str] = []
        self.downloads: list[tuple[str, int]] = []
        self.private: set[str] = set()
        self.token = "ms-0123456789-secret"
        self.wrong: set[str] = set()
        self.cut: set[str] = set()
        self.status: int | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def add(self, name: str, folder: Path, revision: str = "master") -> None:
        """Serve the files of a folder, as "models/org/tiny" for example."""
        files = {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
        self.repositories.setdefault(name, {})[revision] = files

    def sent(self) -> set[str]:
        """The names of all files that were downloaded."""
        return {path for path, _ in self.downloads}


class _Handler(BaseHTTPRequestHandler):
    server: ModelScope

    def do_GET(self) -> None:
        server, url = self.server, urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(url.query).items()}
        parts = url.path.strip("/").split("/")
        if url.path.endswith("internalAccelerationInfo"):  # asked of every server; only a data center's own answers
            self._answer(404, {})
            return
        server.requests.append(self.path)
        name = "/".join(parts[2:5])
        files = server.repositories.get(name, {}).get(query.get("Revision", "master"))
        if server.status:
            self._answer(server.status, {"Code": server.status, "Message": "no"})
        elif name in server.private and self.headers.get("Authorization") != f"Bearer {server.token}":
            self._answer(403, {"Code": 403, "Message": "private"})
        elif files is None:
            self._answer(404, {"Code": 10010205001, "Message": "record not found"})
        elif parts[5:] in (["repo", "files"], ["repo", "tree"]):
            self._answer(200, {"Code": 200, "Data": {"Files": [_entry(*file) for file in files.items()]}})
        elif parts[5:] == ["repo"] and query.get("FilePath") in files:
            self._file(query["FilePath"], files[query["FilePath"]])
        else:
            self._answer(404, {"Code": 404, "Message": "no such file"})

    def _file(self, path: str, content: bytes) -> None:
        server = self.server
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        server.downloads.append((path, start))
        if path in server.wrong:
            content = bytes(reversed(content))
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        end = len(content)
        if path in server.cut:
            server.cut.remove(path)
            end = start + (end - start) // 2
            self.close_connection = True
        self.wfile.write(content[start:end])

    def _answer(self, code: int, content: dict) -> None:
        body = json.dumps(content).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


def _entry(path: str, content: bytes) -> dict:
    return {
        "Path": path, "Name": path.rpartition("/")[2], "Type": "blob", "Size": len(content),
        "Sha256": hashlib.sha256(content).hexdigest(),
    }  # fmt: skip


def modelscope_server() -> AbstractContextManager[ModelScope]:
    """A ModelScope that serves until the end of the block."""
    return serving(ModelScope())

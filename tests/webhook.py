"""A real server on this machine that takes webhooks' messages, and remembers them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Webhook:
    """`answers` are (status, body) for one request after the other, the last one for all that follow; where `hangs` is
    not set, each is given at once."""

    url: str = ""
    answers: list[tuple[int, bytes]] = field(default_factory=lambda: [(200, b"ok")])
    paths: list[str] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)
    hangs: bool = False


@contextmanager
def webhook() -> Iterator[Webhook]:
    hook = Webhook()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            hook.paths.append(self.path)
            hook.bodies.append(json.loads(content))
            if hook.hangs:
                hook.released.wait()
                return
            status, body = hook.answers.pop(0) if len(hook.answers) > 1 else hook.answers[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            self.wfile.write(body)

        def do_GET(self) -> None:  # what a redirection would lead to
            hook.paths.append(f"GET {self.path}")
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        hook.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield hook
        finally:
            hook.released.set()
            server.shutdown()
            thread.join()

"""What `dsrun exporter` does: serve metrics, write them into a file, or print dashboard and rules."""

import importlib.util
import itertools
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from dsrun.cli.output import write_output
from dsrun.errors import EXIT_INTERRUPTED, MissingError, UsageError
from dsrun.monitoring.prometheus.samples import RunCollector, find_runs
from dsrun.system.net import claim_port
from dsrun.system.process.proc import handling
from dsrun.system.terminal.display import counted
from dsrun.system.terminal.stderr import print_note

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

DEFAULT_FOLDER = Path("runs")
CONNECTION_S = 10.0
"""Seconds for a request to arrive, and for a part of the answer to leave; Prometheus itself gives up after as many."""
CONNECTIONS = 64


def run(*, folders: tuple[str, ...], textfile: str | None, dashboard: bool, alert_rules: bool, **given: Any) -> int:
    """The exit code: 0 after SIGTERM and for what ends by itself, 130 after Ctrl-C."""
    if dashboard or alert_rules:
        from dsrun.monitoring.prometheus.grafana import alert_rules_yaml, dashboard_json

        write_output(dashboard_json() if dashboard else alert_rules_yaml(), None, force=False)
        return 0
    paths = [Path(each) for each in folders] or [DEFAULT_FOLDER]
    names = find_runs(paths)
    if importlib.util.find_spec("prometheus_client") is None:
        raise MissingError("dsrun exporter needs prometheus-client", fix="pip install 'dsrun[observe]'")
    from prometheus_client import CollectorRegistry

    registry = CollectorRegistry()
    registry.register(RunCollector(paths))
    runs = f"{counted(len(names), 'run')} in {', '.join(map(str, paths))}"
    if textfile:
        return _write(registry, Path(textfile), given["interval"], once=given["once"], runs=runs)
    return _serve(registry, given["address"], given["port"], runs)


class _Stop(threading.Event):
    """Until SIGTERM or Ctrl-C; `code` is the exit code."""

    code = 0

    def __call__(self, signum: int, _frame: FrameType | None) -> None:
        self.code = EXIT_INTERRUPTED if signum == signal.SIGINT else 0
        self.set()


def metrics_url(address: str, port: int) -> str:
    """Where Prometheus finds the metrics; IPv6 addresses stand in brackets (RFC 3986, 3.2.2)."""
    return f"http://{f'[{address}]' if ':' in address else address}:{port}/metrics"


def _with_limit(handler: Any) -> type[Any]:
    """The handler of connections, with limits: each holds a thread and a descriptor until it has said something."""
    free = threading.BoundedSemaphore(CONNECTIONS)

    class LimitedHandler(handler):  # type: ignore[misc]
        timeout = CONNECTION_S

        def handle(self) -> None:
            if not free.acquire(blocking=False):
                return
            # `timeout` is that of one byte.
            self._limit = threading.Timer(CONNECTION_S, self._end)
            self._limit.daemon = True
            self._limit.start()
            try:
                with suppress(TimeoutError, ConnectionError):
                    super().handle()
            finally:
                self._limit.cancel()
                free.release()

        def parse_request(self) -> bool:
            arrived = bool(super().parse_request())
            self._limit.cancel()
            return arrived

        def _end(self) -> None:
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    return LimitedHandler


def _serve(registry: "CollectorRegistry", address: str, port: int, runs: str) -> int:
    from prometheus_client import start_http_server

    if port:
        claim_port(port, None)
    try:
        socket.getaddrinfo(address, port)
        server, thread = start_http_server(port, addr=address, registry=registry)
        server.RequestHandlerClass = _with_limit(server.RequestHandlerClass)
    except OSError as error:
        what = f"--address {address}: cannot listen on port {port}: {error.strerror}"
        raise UsageError(what, fix="give an address of this machine") from error
    stop = _Stop()
    with handling(stop, (signal.SIGINT, signal.SIGTERM)):
        print_note(f"{runs}: {metrics_url(address, server.server_port)}; Ctrl-C ends it")
        stop.wait()
    server.shutdown()
    thread.join()
    return stop.code


def _write(registry: "CollectorRegistry", file: Path, interval: float, *, once: bool, runs: str) -> int:
    from prometheus_client import write_to_textfile

    if file.suffix != ".prom":
        raise UsageError(f"--textfile {file}: node_exporter reads *.prom only", fix=f"--textfile {file}.prom")
    stop = _Stop()
    failed = ""
    with handling(stop, (signal.SIGINT, signal.SIGTERM)):
        for count in itertools.count():
            try:
                # Written beside it and renamed: node_exporter never reads half a file.
                write_to_textfile(str(file), registry)
                failed = ""
            except OSError as error:
                message = f"--textfile {file} cannot be written: {error.strerror}"
                if not count:
                    raise UsageError(message, fix="name another") from error
                if message != failed:  # a full disk may have room again
                    print_note(f"{message}; tried again every {interval:g} s")
                failed = message
            if not count and not once:
                print_note(f"{runs}: {file}, every {interval:g} s; Ctrl-C ends it")
            if once or stop.wait(interval):
                break
    return stop.code

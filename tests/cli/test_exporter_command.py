"""`dsrun exporter` as a process: over HTTP, as a text file, and read by a real Prometheus."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.dashboard import Dashboard

from dsrun.cli.exporter.serve import metrics_url
from dsrun.monitoring.prometheus.grafana import alert_rules_yaml, dashboard
from dsrun.runs.folder import RunFolder
from dsrun.runs.node_status import GpuSample, NodeStatus, RankProgress, write_node_status
from dsrun.runs.records import utc_now

DSRUN = [sys.executable, "-c", "from dsrun.cli.main import main; main()"]
DATA = Path(__file__).parent.parent / "data" / "prometheus"
WAIT_S = 60.0
needs_prometheus = pytest.mark.skipif(
    not (shutil.which("prometheus") and shutil.which("promtool")), reason="needs the package prometheus"
)


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """A run folder with every kind of figure, held as by a run that goes on."""
    folder = tmp_path / "runs" / "en-ro"
    folder.mkdir(parents=True)
    events: list[dict[str, Any]] = [
        {"kind": "start", "world_size": 2},
        {"kind": "training", "step": 0, "max_steps": 100},
        {"kind": "checkpoint_end", "step": 5, "bytes": 10, "seconds": 1.0},
        {"kind": "failure", "cause": "rank_killed", "step": 6},
        {"kind": "start", "attempt": 1, "world_size": 2},
        {"kind": "training", "step": 5, "max_steps": 100, "attempt": 1},
    ]
    steps: list[dict[str, Any]] = [
        {"step": n, "loss": 3.0 / n, "lr": 1e-4, "grad_norm": 1.0, "tokens": 100 * n, "tokens_per_s": 50.0,
         "padding": 0.1, "mfu": 0.4, "epoch": 0.1 * n} for n in (6, 7, 8)
    ]  # fmt: skip
    steps.append({"step": 8, "eval_loss": 0.5})
    for name, lines in (("events.jsonl", events), ("metrics.jsonl", steps)):
        (folder / name).write_text("".join(json.dumps({"time": utc_now(), **line}) + "\n" for line in lines))
    rank = RankProgress(rank=0, pid=1, phase="training", step=8, silent_s=0.1, step_s=1.0, wait_s=0.2)
    gpu = GpuSample(
        index=0, name="H100", utilization=0.9, memory_used=40, memory_total=80, power_w=300.0, power_limit_w=700.0,
        temperature_c=60, clock_mhz=1500, throttled=(),
    )  # fmt: skip
    status = NodeStatus(
        time=utc_now(), host="gpu01", node=0, attempt=1, world_size=2, ranks=(rank,), gpus=(gpu,), cpu=0.3,
        memory_used=1, memory_total=4,
    )  # fmt: skip
    with RunFolder(folder).acquire():
        write_node_status(folder, status)
        yield folder


@contextmanager
def process(*argv: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    started = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True, **more)
    try:
        yield started
    finally:
        started.kill()
        started.communicate()


@contextmanager
def exporter(*folders: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`dsrun exporter` on a free port, and the URL that it prints."""
    with process(*DSRUN, "exporter", "--port", "0", *map(str, folders)) as started:
        assert started.stderr is not None
        line = started.stderr.readline()
        assert "/metrics" in line, line
        yield started, line.split()[-4].rstrip(";")


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())


def test_metrics_are_served_until_sigterm(run: Path) -> None:
    with exporter(run.parent) as (started, url):
        assert 'dsrun_step{run="en-ro"} 8.0' in get(url)
        with (run / "metrics.jsonl").open("a") as file:
            file.write(json.dumps({"time": utc_now(), "step": 9, "loss": 0.1}) + "\n")
        assert 'dsrun_step{run="en-ro"} 9.0' in get(url)
        started.send_signal(signal.SIGTERM)
        assert started.wait(timeout=WAIT_S) == 0


def test_silent_connection_is_closed(run: Path) -> None:
    """Each would hold a thread and a descriptor. Others are answered meanwhile."""
    program = "import dsrun.cli.exporter.serve as s; s.CONNECTION_S = 0.5; from dsrun.cli.main import main; main()"
    with process(sys.executable, "-c", program, "exporter", str(run), "--port", "0") as started:
        assert started.stderr is not None
        url = next(word for word in started.stderr.readline().split() if word.startswith("http"))
        where = urllib.parse.urlparse(url)
        with socket.create_connection((where.hostname, where.port), timeout=WAIT_S) as silent:
            assert "dsrun_step" in get(url)
            assert silent.recv(1) == b""
        started.send_signal(signal.SIGTERM)
        assert started.wait(timeout=WAIT_S) == 0
        assert "Traceback" not in started.stderr.read()


def test_slow_connections_end_and_are_few(run: Path) -> None:
    """A byte now and then does not prolong a request, and no more than so many wait."""
    program = (
        "import dsrun.cli.exporter.serve as s; s.CONNECTION_S = 2; s.CONNECTIONS = 1; "
        "from dsrun.cli.main import main; main()"
    )
    with process(sys.executable, "-c", program, "exporter", str(run), "--port", "0") as started, ExitStack() as stack:
        assert started.stderr is not None
        url = urllib.parse.urlparse(next(w for w in started.stderr.readline().split() if w.startswith("http")))
        where = (url.hostname, url.port)
        slow = stack.enter_context(socket.create_connection(where, timeout=0.2))
        time.sleep(0.3)
        other = stack.enter_context(socket.create_connection(where, timeout=WAIT_S))
        assert other.recv(1) == b""
        begun = time.monotonic()
        ended = False
        while not ended:
            assert time.monotonic() < begun + WAIT_S
            try:
                slow.sendall(b"G")
                ended = slow.recv(1) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
        time.sleep(0.3)
        assert "dsrun_step" in get(url.geturl())
        started.send_signal(signal.SIGTERM)
        assert started.wait(timeout=WAIT_S) == 0
        assert "Traceback" not in started.stderr.read()


def test_new_run_is_found(run: Path) -> None:
    with exporter(run.parent) as (_, url):
        other = run.parent / "second"
        other.mkdir()
        (other / "events.jsonl").write_text(json.dumps({"kind": "start", "time": utc_now()}) + "\n")
        assert 'run="second"' in get(url)


def dsrun(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DSRUN, *args], cwd=cwd, capture_output=True, text=True, check=False)


def test_text_file_for_node_exporter(run: Path, tmp_path: Path) -> None:
    """Readable for node_exporter, which runs as another user; without --once it is written again and again."""
    done = dsrun("exporter", "--textfile", "dsrun.prom", "--once", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    file = tmp_path / "dsrun.prom"
    assert 'dsrun_loss{run="en-ro"} 0.375' in file.read_text()
    assert file.stat().st_mode & 0o044 == 0o044 & ~_umask()
    file.unlink()
    with process(*DSRUN, "exporter", "--textfile", str(file), "--interval", "1", cwd=tmp_path) as started:
        for _ in range(2):
            wait_for(file.exists)
            file.unlink()
        started.send_signal(signal.SIGINT)
        assert started.wait(timeout=WAIT_S) == 130


def test_text_file_is_tried_again_after_a_failure(run: Path, tmp_path: Path) -> None:
    """The folder is away for a while, as with a file server that is down: one note, and then the file is back."""
    folder = tmp_path / "textfiles"
    folder.mkdir()
    file = folder / "dsrun.prom"
    with process(*DSRUN, "exporter", str(run), "--textfile", str(file), "--interval", "1") as started:
        wait_for(file.exists)
        folder.rename(tmp_path / "away")
        assert started.stderr is not None
        assert "Ctrl-C ends it" in started.stderr.readline()
        assert "cannot be written: No such file or directory; tried again every 1 s" in started.stderr.readline()
        folder.mkdir()
        wait_for(file.exists)


def test_ipv6_address_stands_in_brackets() -> None:
    assert metrics_url("::1", 9) == "http://[::1]:9/metrics"
    assert metrics_url("127.0.0.1", 9) == "http://127.0.0.1:9/metrics"


def _umask() -> int:
    now = os.umask(0)
    os.umask(now)
    return now


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["none"], "none is not a folder"),
        (["--once"], "--once writes a file"),
        (["--textfile", "x.txt", "--once"], "node_exporter reads *.prom only"),
        (["--textfile", "none/x.prom", "--once"], "cannot be written"),
        (["--address", "192.0.2.1"], "--address 192.0.2.1"),
        (["--dashboard", "--alert-rules"], "print two files"),
    ],
)
def test_wrong_use_is_one_line(run: Path, tmp_path: Path, args: list[str], message: str) -> None:
    done = dsrun("exporter", *args, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_taken_port_is_named(run: Path, tmp_path: Path) -> None:
    with exporter(run) as (_, url):
        port = str(urllib.parse.urlsplit(url).port)
        done = dsrun("exporter", "--port", port, cwd=tmp_path)
    assert done.returncode == 2
    assert f"port {port} is taken" in done.stderr


def test_dashboard_is_complete_in_grafanas_schema(tmp_path: Path) -> None:
    """Every key and value of the printed dashboard is one that Grafana's own classes keep."""
    printed = json.loads(dsrun("exporter", "--dashboard", cwd=tmp_path).stdout)
    kept = json.loads(JSONEncoder().encode(Dashboard.from_json(printed)))
    assert printed == dashboard()
    assert _without_additions(kept, printed) == printed
    numbers = [panel["id"] for panel in printed["panels"]]
    assert len(set(numbers)) == len(numbers)


def _without_additions(kept: Any, given: Any) -> Any:
    """`kept` without the keys that Grafana adds with its defaults."""
    if isinstance(given, dict) and isinstance(kept, dict):
        return {key: _without_additions(kept[key], value) for key, value in given.items() if key in kept}
    if isinstance(given, list) and isinstance(kept, list) and len(given) == len(kept):
        return [_without_additions(*pair) for pair in zip(kept, given, strict=True)]
    return kept


@needs_prometheus
def test_alerts_fire_for_runs_in_trouble_only(tmp_path: Path) -> None:
    (tmp_path / "alert_rules.yml").write_text(dsrun("exporter", "--alert-rules", cwd=tmp_path).stdout)
    shutil.copy(DATA / "alert_rules_test.yml", tmp_path)
    done = subprocess.run(
        ["promtool", "test", "rules", "alert_rules_test.yml"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_prometheus
def test_prometheus_answers_query_of_every_panel(run: Path, tmp_path: Path) -> None:
    """Scraped by a real Prometheus; promtool has nothing to say about names and help."""
    with exporter(run.parent) as (_, url):
        lint = subprocess.run(
            ["promtool", "check", "metrics"], input=get(url), capture_output=True, text=True, check=False
        )
        assert (lint.returncode, lint.stderr) == (0, "")
        with prometheus(tmp_path, urllib.parse.urlsplit(url).netloc) as server:
            wait_for(lambda: _answers(server, "dsrun_run_info"))
            queries = [query["expr"] for panel in dashboard()["panels"] for query in panel.get("targets", ())]
            empty = [query for query in queries if not _answers(server, query.replace("$run", ".*"))]
            assert empty == []
            rules = json.loads(get(f"{server}/api/v1/rules"))["data"]["groups"]
            assert [rule["health"] for group in rules for rule in group["rules"] if rule["health"] == "err"] == []


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """A Prometheus that scrapes `target` every second, and its URL."""
    (folder / "alert_rules.yml").write_text(alert_rules_yaml())
    scrape = {"job_name": "dsrun", "static_configs": [{"targets": [target]}]}
    settings = {"global": {"scrape_interval": "1s"}, "rule_files": ["alert_rules.yml"], "scrape_configs": [scrape]}
    (folder / "prometheus.yml").write_text(json.dumps(settings))  # JSON is YAML
    argv = [
        "prometheus",
        "--config.file=prometheus.yml",
        "--storage.tsdb.path=data",
        "--web.listen-address=127.0.0.1:0",
    ]
    with process(*argv, "--log.format=json", cwd=folder) as started:
        assert started.stderr is not None
        for line in started.stderr:
            found = json.loads(line)
            if found.get("msg") == "Listening on":
                yield f"http://{found['address']}"
                return
        raise AssertionError("prometheus did not start")


def _answers(server: str, query: str) -> bool:
    try:
        answer = json.loads(get(f"{server}/api/v1/query?{urllib.parse.urlencode({'query': query})}"))
    except urllib.error.HTTPError as error:
        if error.code == 503:  # it is starting
            return False
        raise
    return bool(answer["data"]["result"])


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)

"""Faults of the environment of a run: its disk, its port, its peers, the model it goes on with."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dsrun.runs.folder import RunFolder
from dsrun.runs.manifest import is_complete
from dsrun.runs.records import read_records
from tests.faults.harness import SAMPLES, Bench, Result
from tests.faults.oracle import findings

# Takes one checkpoint of the tiny model and not two of them beside a third that is being written.
SMALL_DISK = "size=1200k"
TOLERANCE = 1e-5


def environment_faults(bench: Bench) -> list[Result]:
    """All of them; without root those that mount a file system say so."""
    probes: list[Callable[[Bench], Result]] = [
        full_disk, read_only, port_in_use, missing_node, changed_config, changed_tokenizer, fewer_ranks,
    ]  # fmt: skip
    return [probe(bench) for probe in probes]


def full_disk(bench: Bench) -> Result:
    """The run ends at once, the last checkpoint stays whole, and the run goes on when there is room."""
    result = Result("full disk")
    with _mounted(bench.folder / "small-disk", SMALL_DISK) as disk:
        if disk is None:
            result.wrong.append("not tried: only root may mount a tmpfs")
            return result
        run = disk / "run"
        done = bench.train(run, flags=("--force",))
        result.codes.append(done.returncode)
        _expect(result, done, run, cause="disk_full", code=1)
        if not all(is_complete(path) for _, path in RunFolder(run).checkpoints()):
            result.wrong.append("a checkpoint is torn")
        subprocess.run(["mount", "-o", "remount,size=512m", str(disk)], check=True)
        _again(bench, run, result)
    return result


def read_only(bench: Bench) -> Result:
    """A file system that turns read-only, as a failing disk does."""
    result = Result("read-only disk")
    with _mounted(bench.folder / "frozen-disk", "size=64m") as disk:
        if disk is None:
            result.wrong.append("not tried: only root may mount a tmpfs")
            return result
        run = disk / "run"
        shutil.copytree(bench.half, run)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        done = bench.train(run)
        result.codes.append(done.returncode)
        if done.returncode != 2 or "Traceback" in done.stderr:
            result.wrong.append(f"exit code {done.returncode}: {done.stderr[-300:]}")
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        _again(bench, run, result)
    return result


def port_in_use(bench: Bench) -> Result:
    result = Result("port in use")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        done = bench.train(bench.folder / "port", flags=("--master-port", str(port)))
    result.codes.append(done.returncode)
    if done.returncode == 0 or str(port) not in done.stderr:
        result.wrong.append(f"exit code {done.returncode}: {done.stderr[-300:]}")
    return result


def missing_node(bench: Bench) -> Result:
    """The first of two nodes waits, and says which one never came."""
    result = Result("missing node")
    run = bench.folder / "missing-node"
    argv = [
        sys.executable, "-m", "dsrun", "launch", "--nodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1",
        "--master-port", "0", "--rendezvous-timeout", "5", "--output", str(run), "--", sys.executable, "-c", "pass",
    ]  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as server:
        argv[argv.index("--master-port") + 1] = str(server.getsockname()[1])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL)
    result.codes.append(done.returncode)
    causes = [each.get("cause") for each in read_records(run / "events.jsonl") if each["kind"] == "failure"]
    result.cause = causes[0] if causes else None
    if done.returncode == 0 or result.cause != "rendezvous_timeout":
        result.wrong.append(f"exit code {done.returncode}, cause {result.cause}: {done.stderr[-300:]}")
    return result


def changed_config(bench: Bench) -> Result:
    """Other weights' shape under the same name: refused before anything is loaded."""
    return _changed(bench, "changed config", "config.json", lambda config: config | {"num_heads": 2, "d_kv": 16})


def changed_tokenizer(bench: Bench) -> Result:
    def swap(tokenizer: dict) -> dict:
        vocab = tokenizer["model"]["vocab"]
        vocab["w0"], vocab["w1"] = vocab["w1"], vocab["w0"]
        return tokenizer

    return _changed(bench, "changed tokenizer", "tokenizer.json", swap)


def fewer_ranks(bench: Bench) -> Result:
    """Saved by two ranks, resumed on one: the same losses within rounding, every sample once."""
    result = Result("two ranks, then one")
    run = bench.folder / "fewer-ranks"
    shutil.copytree(bench.half, run)
    done = bench.train(run, flags=("--nproc", "1"))
    result.codes.append(done.returncode)
    if done.returncode != 0:
        result.wrong.append(f"exit code {done.returncode}: {done.stderr[-300:]}")
        return result
    result.wrong += findings(run, bench.whole, samples=SAMPLES, relative=TOLERANCE)
    return result


def _changed(bench: Bench, name: str, file: str, change: Callable[[dict], dict]) -> Result:
    result = Result(name)
    run = bench.folder / name.replace(" ", "-")
    shutil.copytree(bench.half, run)
    path = Path(bench.model) / file
    before = path.read_text()
    try:
        path.write_text(json.dumps(change(json.loads(before))))
        done = bench.train(run)
    finally:
        path.write_text(before)
    result.codes.append(done.returncode)
    if done.returncode != 2 or "checkpoint" not in done.stderr:
        result.wrong.append(f"exit code {done.returncode}: {done.stderr[-300:]}")
    _again(bench, run, result)
    return result


def _expect(result: Result, done: subprocess.CompletedProcess[str], run: Path, *, cause: str, code: int) -> None:
    causes = [each.get("cause") for each in read_records(run / "events.jsonl") if each["kind"] == "failure"]
    result.cause = causes[0] if causes else None
    if done.returncode != code:
        result.wrong.append(f"exit code {done.returncode} and not {code}: {done.stderr[-300:]}")
    # A full disk may have no room for the line that says so; then stderr has to.
    if result.cause != cause and "space" not in done.stderr:
        result.wrong.append(f"cause {result.cause} and not {cause}")


def _again(bench: Bench, run: Path, result: Result) -> None:
    done = bench.train(run, flags=("--force",))
    result.codes.append(done.returncode)
    if done.returncode != 0:
        result.wrong.append(f"afterwards exit code {done.returncode}: {done.stderr[-300:]}")
        return
    result.wrong += findings(run, bench.whole, samples=SAMPLES)


@contextmanager
def _mounted(folder: Path, options: str) -> Iterator[Path | None]:
    """A tmpfs of its own at `folder`; None where that is not allowed."""
    if os.geteuid() != 0:
        yield None
        return
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=False).returncode != 0:
        yield None
        return
    try:
        yield folder
    finally:
        with suppress(subprocess.CalledProcessError):
            subprocess.run(["umount", "--lazy", str(folder)], check=True)

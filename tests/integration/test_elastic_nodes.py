"""`dsrun launch --elastic 2:3`, three supervisors on this machine: the run goes on without one, and takes it back."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsrun.runs.records import read_records
from dsrun.system.net import free_port, port_is_free
from tests.faults.hold import Hold
from tests.forkserver.client import HEAVY
from tests.integration.conftest import SHORT, many_runs

pytestmark = [pytest.mark.train, pytest.mark.exhaustive]

PATIENCE_S = 300
# The global batch of 12 is 4 × 3 ranks × 1 step, and 3 × 2 ranks × 2 steps.
SIZES = ["--global-batch-size", "12", "--micro-batch-size", "4", "--learning-rate", "1e-4"]


class Nodes:
    """Three supervisors by hand, and the run folder that they share."""

    def __init__(self, folder: Path, flags: list[str]) -> None:
        self.folder, self.run = folder, folder / "run"
        self.hold = Hold(folder, "optimizer", call=5, rank=0)
        self.started: list[subprocess.Popen] = []
        self._flags = [*flags, "--output", str(self.run), "--hang-timeout", "0"]
        while not port_is_free((port := free_port()) + 1):
            pass
        self._port = port

    def start(self, node: int) -> subprocess.Popen:
        where = ["--master-addr", "127.0.0.1", "--master-port", self._port, "--nproc", 1]
        words = ["--nodes", 3, "--node-rank", node, *where, "--elastic", "2:3", "--", "dsrun", "train", *self._flags]
        environ = {**os.environ, "OMP_NUM_THREADS": "1", **self.hold.env}
        with (self.folder / f"output-{len(self.started)}").open("wb") as output:
            child = HEAVY.popen(
                [sys.executable, "-m", "dsrun", "launch", *map(str, words)],
                cwd=self.folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            )  # fmt: skip
        self.started.append(child)
        return child

    def until(self, condition) -> None:
        end = time.monotonic() + PATIENCE_S
        while not condition():
            said = "".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("output-*")))
            assert time.monotonic() < end, said
            time.sleep(0.05)

    def events(self, kind: str) -> list[dict]:
        return [row for row in read_records(self.run / "events.jsonl") if row["kind"] == kind]

    def is_asked_to_leave(self) -> bool:
        """Whether the supervisor of node 0 has asked its rank, which is held, to save and leave."""
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                found = dict(line.partition("=")[::2] for line in environ.read_text().split("\0"))
            except (OSError, UnicodeDecodeError):
                continue
            if found.get("DSRUN_OUTPUT") == str(self.run) and Path(found.get("DSRUN_STOP_FILE") or "/-").exists():
                return True
        return False


@pytest.fixture
def nodes(tiny, pairs, tmp_path, request):
    flags = ["--model", tiny["t5"], "--train-file", pairs["train"], *SHORT, *SIZES, "--max-steps", "16"]
    found = Nodes(tmp_path, [*flags, "--save-steps", "3", "--zero", request.param])
    yield found
    for child in found.started:
        child.kill()
        child.wait()


def losses(run: Path) -> dict[int, float]:
    return {row["step"]: row["loss"] for row in read_records(run / "metrics.jsonl") if "loss" in row}


@pytest.mark.parametrize("nodes", ["2", "3"], indirect=True, ids=["zero-2", "zero-3"])
def test_run_goes_on_without_a_node_and_takes_it_back(nodes):
    first, lost, last = (nodes.start(node) for node in range(3))
    nodes.hold.wait(0)
    lost.kill()
    nodes.hold.wait(1)
    [reduced] = nodes.events("nodes_reduced")
    assert (reduced["nodes"], reduced["of"], reduced["gone"]) == (2, 3, [1])
    assert (reduced["micro_batch"], reduced["accumulation"]) == (3, 2)
    again = nodes.start(1)
    nodes.until(nodes.is_asked_to_leave)
    nodes.hold.release()
    children = (first, again, last)
    nodes.until(lambda: all(child.poll() is not None for child in children))
    assert [child.returncode for child in children] == [0, 0, 0]
    [restored] = nodes.events("nodes_restored")
    assert (restored["nodes"], restored["back"], restored["micro_batch"]) == (3, [1], 4)
    assert [row["world_size"] for row in nodes.events("start")] == [3, 2, 3]
    assert not nodes.events("signal")
    plain = nodes.folder / "plain"
    flags = [*nodes._flags, "--output", str(plain)]
    many_runs([flags], ranks=1, scratch=nodes.folder)
    assert losses(nodes.run) == pytest.approx(losses(plain), rel=1e-6)
    assert list(losses(nodes.run)) == list(range(1, 17))

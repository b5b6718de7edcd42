"""Real groups of gloo ranks: sound, slow, dying and hanging ones, and nodes that differ or cannot be reached."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from dsrun.collectives.coordination.lead import CollectiveTimeouts
from dsrun.collectives.coordination.meeting import join
from dsrun.collectives.judge import CollectiveVerdict
from dsrun.collectives.observations import CollectiveObservations
from dsrun.collectives.place import MemberPlace
from dsrun.collectives.run_collectives import run_test
from dsrun.collectives.schedule import OPERATIONS
from dsrun.findings.finding import text_of, text_table
from dsrun.launch.coordinator.messages import shared_key
from dsrun.messages import Message
from dsrun.system.net import free_port
from tests.forkserver.client import LIGHT, ROOT

pytestmark = pytest.mark.train

# Runs in each fork of a rank's program, which has imported torch: what is wrong with one rank of the machine.
FAULTS = """
import os, signal, sys

def fault():
    torch = sys.modules.get("torch")
    if torch is None or os.environ.get("LOCAL_RANK") != os.environ["FAULTY_RANK"]:
        return
    kind = os.environ["FAULT"]
    if kind == "slow":
        whole = torch.mm
        torch.mm = lambda *args: [whole(*args) for _ in range(4)]
    elif kind == "wrong":
        import torch.distributed as dist
        whole = dist.all_reduce
        dist.all_reduce = lambda buffer: (whole(buffer), buffer[7].add_(1))
    else:
        os.kill(os.getpid(), getattr(signal, kind))

os.register_at_fork(after_in_child=fault)
"""


@pytest.fixture
def faulty(tmp_path, monkeypatch):
    """Makes one rank of this machine faulty."""

    def make(kind: str, rank: int) -> None:
        (tmp_path / "sitecustomize.py").write_text(FAULTS)
        monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{ROOT}")
        monkeypatch.setenv("FAULT", kind)
        monkeypatch.setenv("FAULTY_RANK", str(rank))

    return make


def run(ranks: int, **limits: float) -> tuple[CollectiveObservations, CollectiveVerdict]:
    """The test of so many ranks on this machine."""
    outcome = run_test(MemberPlace(ranks=ranks), secret=None, limits=CollectiveTimeouts(**limits), notify=print)
    assert outcome.seen is not None
    assert outcome.verdict is not None
    assert outcome.exit_code == (3 if outcome.verdict.failed else 0)
    return outcome.seen, outcome.verdict


def errors(verdict: CollectiveVerdict) -> dict[str, Message]:
    return {each.code: each.message for each in verdict.findings if each.level == "error"}


def test_sound_ranks_give_right_values_and_bandwidths() -> None:
    """Every pair once, then all; each collective has a bandwidth; nothing is wrong."""
    seen, verdict = run(3)
    assert not errors(verdict)
    pairs = {tuple(unit.ranks[0] for unit in group.units) for group in seen.of("pairs")}
    assert pairs == {(0, 1), (0, 2), (1, 2)}
    (whole,) = seen.of("all")
    assert list(whole.ranks) == [0, 1, 2]
    assert set(whole.bandwidths) == set(OPERATIONS)
    assert all(value > 0 for value in whole.bandwidths.values())


def test_slow_rank_is_named(faulty) -> None:
    """A rank that computes each product four times is at least 10% slower than the others."""
    faulty("slow", 1)
    _, verdict = run(2)
    slow = [each.message for each in verdict.findings if each.code == "slow_rank"]
    computing = text_table("slow_rank.computes")["message"]
    assert "rank 1" in [each.values["rank"] for each in slow if each.template == computing]
    # These ranks are on CPUs, where nvidia-smi tells nothing.
    assert {each.fix for each in verdict.findings if each.code == "slow_rank"} == {text_of("of_cpus.slow_rank")}
    assert not errors(verdict)


def test_rank_that_dies_is_named(faulty) -> None:
    faulty("SIGKILL", 1)
    seen, verdict = run(3)
    died = errors(verdict)["rank_died"].values
    assert died["rank"] == "rank 1"
    assert "SIGKILL" in died["what"]
    assert verdict.exclude == (seen.members[0].facts.host,)
    # The others are tested without it.
    assert [group.ok for group in seen.of("pairs")] == [True]
    assert "rank_hung" not in errors(verdict)


def test_rank_that_hangs_ends_the_test_in_time(faulty) -> None:
    """A stopped process is a finding that names it, and the test ends."""
    faulty("SIGSTOP", 1)
    _, verdict = run(2, phase_s=10)
    assert errors(verdict)["rank_hung"].values["rank"] == "rank 1"


def test_wrong_values_are_found(faulty) -> None:
    faulty("wrong", 1)
    _, verdict = run(2)
    wrong = errors(verdict)["wrong_values"].values
    assert (wrong["operation"], wrong["rank"], wrong["count"]) == ("all_reduce", "rank 1", 1)


NODE = (
    "import sys; from dsrun.cli.doctor.collectives import run_collectives; sys.exit(run_collectives(ranks=1, nodes=2, \
node_rank=int(sys.argv[1]), master_addr='127.0.0.1', master_port=int(sys.argv[2]), form='json'))"
)


def start_node(number: int, port: int, **env: str) -> subprocess.Popen[str]:
    variables = {**os.environ, "SLURMD_NODENAME": f"gpu0{number}", "PYTHONPATH": str(ROOT), **env}
    return LIGHT.popen(
        [sys.executable, "-c", NODE, str(number), str(port)],
        env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_two_nodes_that_differ_are_compared(tmp_path: Path) -> None:
    """Two processes of the doctor, one of which finds another version of DeepSpeed."""
    other = tmp_path / "deepspeed-0.1.0.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: deepspeed\nVersion: 0.1.0\n")
    port = free_port()
    nodes = [start_node(0, port), start_node(1, port, PYTHONPATH=f"{tmp_path}:{ROOT}")]
    outputs = [node.communicate(timeout=300) for node in nodes]
    assert [node.returncode for node in nodes] == [3, 3], outputs
    found = json.loads(outputs[0][0])
    assert outputs[1][0] == ""
    assert [each["host"] for each in found["nodes"]] == ["gpu00", "gpu01"]
    (differ,) = [each for each in found["findings"] if each["code"] == "nodes_differ" and each["level"] == "error"]
    assert all(each in differ["message"] for each in ("DeepSpeed", "0.1.0", "gpu01"))
    # Neither of two is in the minority.
    assert found["exclude"] == []
    assert [group["phase"] for group in found["groups"]] == ["alone", "pairs", "all"] or found["groups"][-1]["ok"]


def test_missing_node_is_named() -> None:
    place = MemberPlace(count=2, port=free_port(), names=("gpu00", "gpu01"), ranks=1)
    outcome = run_test(place, secret=None, limits=CollectiveTimeouts(join_s=1), notify=print)
    assert outcome.exit_code == 3
    assert outcome.verdict is not None
    assert errors(outcome.verdict)["node_missing"].values["name"] == "node 1 (gpu01)"
    assert outcome.verdict.exclude == ("gpu01",)


def test_leader_that_cannot_be_reached_is_a_finding() -> None:
    place = MemberPlace(index=1, count=2, port=free_port(), ranks=1)
    outcome = run_test(place, secret=None, limits=CollectiveTimeouts(join_s=0.5), notify=print)
    assert outcome.exit_code == 3
    assert outcome.finding is not None
    assert outcome.finding.code == "tcp_unreachable"
    values = outcome.finding.message.values
    assert (values["index"], values["host"], values["port"]) == (1, "127.0.0.1", place.port + 1)


def test_leader_with_an_unknown_name_is_a_finding() -> None:
    """Its own --master-addr is one that this machine cannot resolve."""
    place = MemberPlace(count=2, host="node1.invalid", port=free_port(), ranks=1, by_hand=True)
    outcome = run_test(place, secret=None, limits=CollectiveTimeouts(join_s=0.5), notify=print)
    assert outcome.exit_code == 3
    assert outcome.finding is not None
    assert outcome.finding.code == "tcp_unreachable"
    values = outcome.finding.message.values
    assert (values["index"], values["host"], values["port"]) == (0, "node1.invalid", place.port + 1)
    assert "--master-addr" in outcome.finding.fix


def test_pair_that_cannot_connect_is_named_before_torch() -> None:
    """Node 1 listens where nobody can reach it: node 0 says so without starting a rank."""
    port, closed = free_port(), free_port()
    place = MemberPlace(count=2, port=port, ranks=1)

    def node_1() -> None:
        facts = {"host": "gpu01", "torch": ""}
        hello = {"index": 1, "count": 2, "facts": facts, "ranks": 1, "device": "cpu"}
        key = shared_key(run=place.run, secret=None)
        membership = join(
            "127.0.0.1", port + 1, key, lambda _address, ahead: {**hello, "ahead_s": ahead}, timeout_s=30, notify=print
        )
        membership.send({"address": "127.0.0.1", "endpoints": [["127.0.0.1", closed]]})
        while (message := membership.next()) and "end" not in message:
            if "peers" in message:
                membership.send({"unreachable": []})
        membership.end()

    thread = threading.Thread(target=node_1)
    thread.start()
    outcome = run_test(place, secret=None, limits=CollectiveTimeouts(), notify=print)
    thread.join()
    assert outcome.verdict is not None
    values = errors(outcome.verdict)["tcp_unreachable"].values
    assert (values["peer"], values["ports"]) == ("node 1 (gpu01)", f"127.0.0.1:{closed}")
    assert values["why"] == "Connection refused"
    assert "gpu01" in outcome.verdict.exclude

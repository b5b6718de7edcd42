"""torchrun's command line under `dsrun launch`."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.launch.launcher_line import parse_torchrun


def parsed(line):
    return parse_torchrun(line.split())


def test_torchrun_topology_flags_parsed():
    found = parsed(
        "--nnodes=2 --nproc_per_node 4 --node-rank=1 --master_addr gpu1 --master-port=3000 --max-restarts 2 x.py"
    )
    assert (found.nodes, found.nproc, found.node_rank) == (2, 4, 1)
    assert (found.master_addr, found.master_port, found.max_restarts) == ("gpu1", 3000, 2)
    assert (found.mode, found.program) == ((), ("x.py",))


@pytest.mark.parametrize(
    ("endpoint", "host", "port"),
    [
        ("gpu1:3000", "gpu1", 3000),
        ("[::1]:3000", "::1", 3000),
        ("[::1]", "::1", None),
        ("gpu1", "gpu1", None),
    ],
)
def test_torchrun_rdzv_endpoint_is_master_addr(endpoint, host, port):
    """The rendezvous endpoint is where node 0 listens."""
    found = parsed(f"--rdzv-backend=c10d --rdzv-endpoint={endpoint} --rdzv-id=job x.py")
    assert (found.master_addr, found.master_port, found.rdzv_id) == (host, port, "job")


@pytest.mark.parametrize(
    ("line", "mode", "words"),
    [
        ("x.py --nnodes 3 -m", (), ("x.py", "--nnodes", "3", "-m")),
        ("-m pack.age --flag", ("--module",), ("pack.age", "--flag")),
        ("--module -- pack.age -- x", ("--module",), ("pack.age", "--", "x")),
        ("--no-python ./run", ("--no-python",), ("./run",)),
        ("--standalone -r 3 --tee=3 --log-dir logs x.py", (), ("x.py",)),
        ("--local-ranks-filter 0 --shutdown_timeout=9 x.py", (), ("x.py",)),
        ("--signals-to-handle SIGTERM --logs-specs own --event-log-handler null x.py", (), ("x.py",)),
        ("--duplicate-stdout-filters a --duplicate-stderr-filters b x.py", (), ("x.py",)),
    ],
)
def test_torchrun_program_starts_at_first_non_option(line, mode, words):
    """The program begins at the first word that is no option."""
    found = parsed(line)
    assert (found.mode, found.program) == (mode, words)


def test_torchrun_double_dollar_unescaped():
    """Two dollar signs stand for one."""
    assert parse_torchrun(["x$$.py", "$$HOME/a"]).program == ("x$.py", "$HOME/a")
    assert parse_torchrun(["--no-python", "./x$$", "$$HOME/a"]).program == ("./x$$", "$HOME/a")


@pytest.mark.parametrize("workers", ["auto", "gpu"])
def test_torchrun_nproc_per_node_auto_is_default(workers):
    """`auto` and `gpu` mean one worker per GPU, which is the default."""
    assert parsed(f"--nproc-per-node={workers} x.py").nproc is None


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("--nnodes=1:4 x.py", "--nnodes 1:4 is not a number.*a range of nodes"),
        ("--nproc-per-node=all x.py", "--nproc-per-node all is not a number"),
        (f"--nnodes={'9' * 5000} x.py", "--nnodes 9+… is not a number"),
        (f"--rdzv-endpoint=gpu1:{'9' * 5000} x.py", "is not HOST:PORT"),
        ("--rdzv-backend=etcd x.py", "--rdzv-backend etcd"),
        ("--rdzv-endpoint=gpu1:port x.py", "is not HOST:PORT"),
        ("--frobnicate x.py", "--frobnicate: dsrun does not know"),
        ("--standalone -- --frobnicate x.py", "--frobnicate: .*remove it"),
        ("--nnodes", "--nnodes: its value is missing"),
        ("--nnodes 2", "no program is named"),
        ("", "no program is named"),
    ],
)
def test_torchrun_unsupported_options_refused(line, says):
    """Options that dsrun cannot honour are refused."""
    with pytest.raises(UsageError, match=f"torchrun.*{says}"):
        parsed(line)


@pytest.mark.parametrize(
    "line", ["--nnodes 2", "--nnodes=a x.py", "--frobnicate x.py", "-- -x", "--rdzv-endpoint=a:b x"]
)
def test_refusal_names_the_launcher_of_the_line(line):
    with pytest.raises(UsageError, match=r"^torch\.distributed\.launch"):
        parse_torchrun(line.split(), "torch.distributed.launch")

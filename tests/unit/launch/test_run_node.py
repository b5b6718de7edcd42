"""What `dsrun launch` prints when a run has ended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from dsrun.errors import UsageError
from dsrun.launch.context import LocalLauncher, LocalWorkers, RunOutcome
from dsrun.launch.coordinator.messages import RendezvousError
from dsrun.launch.node import run_node
from dsrun.launch.signals import StartupSignals
from dsrun.recipe.preflight.elastic import NodeRange, with_range
from dsrun.recipe.resolve import resolve
from dsrun.recipe.resolved import to_json
from dsrun.runs.attempts import JobStarts
from dsrun.runs.folder import RunFolder
from dsrun.system.host import hostname
from tests.ports import free_ports

ROOT = Path(__file__).parents[3]
EVENTS = """\
{"time": "2026-11-21T04:00:00.000+00:00", "kind": "start", "attempt": 0}
{"time": "2026-11-21T04:00:10.000+00:00", "kind": "training", "step": 0}
{"time": "2026-11-21T04:01:40.000+00:00", "kind": "end", "step": 100}
"""


def work_in(folder, **fields):
    """Of a program that must not begin, unless `fields` say how."""
    given = {"require": pytest.fail, "job": pytest.fail, "dry_run": False, **fields}
    return run_node.NodeProgram(
        topology=LocalWorkers(1, "cpu", 1), output=str(folder), debug=False, force=False, **given
    )


class BeginsError(Exception):
    """Everything before the first process was fine."""


def begin():
    raise BeginsError


@pytest.mark.parametrize("node", [0, 1])
def test_node_of_finished_job_ends_with_0(tmp_path, capsys, monkeypatch, node):
    """A pod that is created after the run has finished waits for no other; a new job begins."""
    monkeypatch.setenv("DSRUN_JOB_UID", "one")
    folder = RunFolder.create(tmp_path / "run")
    place = LocalLauncher(how="here", nodes=2, node=node, port=1, recreated=True)
    for what in ("began", "finished"):
        JobStarts(folder.path, os.environ).record(what)
    assert run_node.run_node(work_in(folder.path), place, StartupSignals(), rendezvous_timeout_s=0) == 0
    assert f"the run in {folder.path} has finished" in capsys.readouterr().err

    monkeypatch.setenv("DSRUN_JOB_UID", "two")
    with pytest.raises(BeginsError):
        run_node.run_node(work_in(folder.path, require=begin), place, StartupSignals(), rendezvous_timeout_s=0)


@pytest.mark.parametrize(("before", "code"), [(True, 75), (False, 1)])
def test_missing_pod_is_no_failure_of_a_job_that_has_begun(tmp_path, monkeypatch, before, code):
    """It may wait for a machine; at the first start the name or the port may be wrong, which somebody has to see."""
    monkeypatch.setenv("DSRUN_JOB_UID", "one")
    folder = RunFolder.create(tmp_path / "run")
    if before:
        JobStarts(folder.path, os.environ).record("began")
    place = LocalLauncher(how="here", nodes=2, node=1, port=free_ports() - 1, recreated=True)
    with pytest.raises(RendezvousError) as missing:
        run_node.run_node(work_in(folder.path, require=int), place, StartupSignals(), rendezvous_timeout_s=0)
    assert missing.value.exit_code == code


def test_recreated_node_waits_for_folder_in_use(tmp_path, capsys, monkeypatch):
    """A lost pod may hold the lock for a while; one that holds it for good is named."""
    folder = RunFolder.create(tmp_path / "run")
    place = LocalLauncher(how="here", recreated=True)
    work = work_in(folder.path, require=begin)
    lock = folder.acquire()
    with pytest.raises(UsageError, match="is in use by process"):
        run_node.run_node(work, place, StartupSignals(), rendezvous_timeout_s=0)
    monkeypatch.setattr(run_node.time, "sleep", lambda _: lock.release())
    with pytest.raises(BeginsError):
        run_node.run_node(work, place, StartupSignals(), rendezvous_timeout_s=60)
    assert "waiting until it is free" in capsys.readouterr().err


@pytest.mark.parametrize(("node", "external", "printed"), [(0, False, True), (1, False, False), (0, True, False)])
def test_goodput_reported_by_node_0_of_training(tmp_path, capsys, node, external, printed):
    """Only the first node reports the goodput of a training."""
    folder = RunFolder.create(tmp_path / "run")
    folder.events.write_text(EVENTS)
    work = run_node.NodeProgram(
        topology=LocalWorkers(1, "cpu", 1),
        output=str(folder.path),
        debug=False,
        dry_run=False,
        force=False,
        require=pytest.fail,
        job=pytest.fail,
        recipe=None if external else resolve(["--model", "demo-t5"], tmp_path),
    )
    place = LocalLauncher(how="here", nodes=2, node=node)
    assert run_node._report(RunOutcome(0), folder, work, place) == 0
    assert ("goodput 90.0%: 90 s training" in capsys.readouterr().err) is printed


@pytest.mark.parametrize(("node", "targets", "senders"), [(0, ("true",), 1), (1, ("true",), 0), (0, (), 0)])
def test_node_0_alone_sends_messages(tmp_path, node, targets, senders):
    """One process, where there are targets; nothing is left of it."""
    work = run_node.NodeProgram(
        topology=LocalWorkers(1, "cpu", 1),
        output=str(RunFolder.create(tmp_path / "run").path),
        debug=False,
        dry_run=False,
        force=False,
        require=pytest.fail,
        job=pytest.fail,
        notify=targets,
    )
    before = {child.pid for child in psutil.Process().children()}
    with run_node.notifications(work, LocalLauncher(how="here", nodes=2, node=node), StartupSignals()) as ended:
        assert len({child.pid for child in psutil.Process().children()} - before) == senders
        ended(RunOutcome(0))
    assert {child.pid for child in psutil.Process().children()} - before == set()


# The end of a run; the file descriptor that is the first argument is a pipe without a reader.
CLOSED_OUTPUT = """
import os, sys
from pathlib import Path
from dsrun.launch.node.run_node import notifier, report
from dsrun.launch.coordinator.messages import RendezvousError
from dsrun.launch.context import RunOutcome
from dsrun.runs.attempts import JobStarts
from dsrun.runs.folder import RunFolder
read, write = os.pipe()
os.close(read)
os.dup2(write, int(sys.argv[1]))
folder = RunFolder(Path("run"))
notifier(folder)("once more")
sys.exit(report(RunOutcome(int(sys.argv[2]), "the reason", "the advice", "the log"), folder))
"""


@pytest.mark.parametrize(("fd", "code"), [(1, 0), (2, 75), (2, 1), (2, 0)])
def test_exit_code_kept_when_output_pipe_is_closed(tmp_path, fd, code):
    """The exit code does not depend on the output being read, as behind `| head`, or when the terminal was closed."""
    (tmp_path / "run").mkdir()
    argv = [sys.executable, "-c", CLOSED_OUTPUT, str(fd), str(code)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == code
    assert done.stdout == ("run\n" if (fd, code) == (2, 0) else "")
    assert (tmp_path / "run" / "console.log").read_text() == "note: once more\n"


A100, H100 = "A100", "H100"


@pytest.mark.parametrize(
    ("workers", "nodes", "words"),
    [
        (LocalWorkers(1, "cpu", 2), 1, "starting 1 rank on the CPUs of {host}, output in runs/x"),
        (LocalWorkers(2, "cuda", 8, (H100, H100)), 1, "starting 2 ranks on 2 × H100 of {host}, output in runs/x"),
        (
            LocalWorkers(3, "cuda", 8, (A100, H100, H100)), 4,
            "starting 12 ranks on 4 machines, 3 ranks here on 1 × A100 and 2 × H100 of {host}, output in runs/x",
        ),
        (LocalWorkers(2, "cuda", 8), 1, "starting 2 ranks on the GPUs of {host}, output in runs/x"),
    ],
)  # fmt: skip
def test_first_words_name_what_is_known(workers, nodes, words):
    work = replace(work_in("runs/x"), topology=workers)
    assert run_node.first_words(work, LocalLauncher(how="", nodes=nodes)) == words.format(host=hostname())


@pytest.mark.parametrize(("node", "own_terminal", "speaks"), [(0, False, True), (1, False, False), (1, True, True)])
def test_first_words_before_the_nodes_meet(tmp_path, capsys, node, own_terminal, speaks):
    """Of one node, or of each that somebody looks at by itself."""
    place = LocalLauncher(how="", nodes=2, node=node, port=free_ports() - 1, own_terminal=own_terminal)
    with pytest.raises(RendezvousError):
        run_node.run_node(work_in(tmp_path / "run", require=int), place, StartupSignals(), rendezvous_timeout_s=0)
    assert capsys.readouterr().err.startswith("starting ") is speaks


def test_node_is_elastic_as_node_0_says(tmp_path):
    """One started without --elastic would take the return of another node for a request to end."""
    recipe = with_range(resolve(["--model", "demo-t5"], tmp_path), NodeRange(2, 3))
    work = work_in(tmp_path, recipe=resolve(["--model", "demo-t5"], tmp_path))
    info = {"recipe": json.dumps(to_json(recipe))}
    place = LocalLauncher(how="here", nodes=3, node=1)
    assert run_node._with_recipe_of_node_0(work, info, place).elastic == NodeRange(2, 3)

"""How SLURM's programs are queried, and how their failures are reported. The messages are those of SLURM 22.05."""

from __future__ import annotations

from threading import Event

import pytest

from dsrun.errors import MissingError, ToolError
from dsrun.slurm.cluster.discover import discover, discover_if_any
from dsrun.slurm.jobs.submit import submit
from dsrun.system import slurm
from dsrun.system.slurm import NoAnswerError
from tests.slurm_recordings import recorded, stand_in, stand_in_cluster

DOWN = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n"
DATABASE = "sacct: error: Problem talking to the database: Connection timed out\n"
NO_CLUSTER = "scontrol: error: DNS SRV lookup failed\nscontrol: fatal: Could not establish a configuration source\n"


@pytest.fixture(autouse=True)
def programs(tmp_path, monkeypatch):
    """An empty folder as the only one with SLURM's programs in it."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("SLURM_CONF", raising=False)
    return folder


def test_slurm_commands_missing():
    with pytest.raises(MissingError, match="no SLURM cluster here"):
        slurm.show("partition")


def test_slurm_commands_without_cluster(programs):
    stand_in(programs, "scontrol", ("", "", NO_CLUSTER, 1))
    with pytest.raises(MissingError, match="no SLURM cluster here"):
        slurm.show("node")


def test_missing_slurm_conf_refused_without_query(programs, monkeypatch, tmp_path):
    """A missing SLURM_CONF is refused before any command waits for it."""
    stand_in(programs, "scontrol", ("", "never asked", "", 0))
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "none"))
    with pytest.raises(ToolError, match="SLURM_CONF names"):
        slurm.show("node")
    assert not (programs / "calls").exists()


def test_unreachable_controller_and_accounting_database(programs):
    stand_in(programs, "scontrol", ("", "", DOWN, 1))
    stand_in(programs, "sacct", ("", "", DATABASE, 1))
    for question in (lambda: slurm.job("1"), lambda: slurm.batch_script("1"), lambda: slurm.show("config")):
        with pytest.raises(NoAnswerError, match="Unable to contact slurm controller"):
            question()
    with pytest.raises(NoAnswerError, match="Problem talking to the database"):
        slurm.history(("JobID",))


def test_scontrol_failure_quoted(programs):
    stand_in(programs, "scontrol", ("", "", "scontrol: something odd\n", 1))
    with pytest.raises(ToolError, match="scontrol failed: scontrol: something odd") as caught:
        slurm.show("partition")
    assert not isinstance(caught.value, NoAnswerError)


def test_slow_controller_told_once_on_stderr(programs, monkeypatch):
    """While SLURM does not answer a line says so; one that answers at once is no matter."""
    stand_in(programs, "scontrol", ("", "an answer"))
    told, notes, capture = Event(), [], slurm.capture
    monkeypatch.setattr(slurm, "_TOLD", set())
    monkeypatch.setattr(slurm, "print_note", lambda line: (notes.append(line), told.set()))
    assert slurm.show("node") == "an answer"
    monkeypatch.setattr(slurm, "SILENCE_S", 0)
    monkeypatch.setattr(slurm, "capture", lambda *args, **options: told.wait(60) and capture(*args, **options))
    assert [slurm.show("node"), slurm.show("node")] == ["an answer", "an answer"]
    assert [("scontrol" in line, "60 s" in line) for line in notes] == [(True, True)]


def test_sbatch_unrecognized_option_named(programs, tmp_path):
    """An option that sbatch does not know is named."""
    usage = "sbatch: unrecognized option '--nonsense=1'\nTry \"sbatch --help\" for more information\n"
    stand_in(programs, "sbatch", ("", "", usage, 1))
    with pytest.raises(ToolError, match="unrecognized option '--nonsense=1'"):
        submit("#!/bin/bash\n")


def test_invalid_job_id_returns_nothing(programs):
    stand_in(programs, "scontrol", ("", "", "slurm_load_jobs error: Invalid job id specified\n", 1))
    stand_in(programs, "squeue", ("", "", "slurm_load_jobs error: Invalid job id specified\n", 1))
    assert slurm.job("9") is None
    assert slurm.queue(("i",), job_id="9") == []


def test_batch_script_of_other_user_is_none(programs):
    # scontrol 22.05 ends with 0 all the same.
    stand_in(
        programs,
        "scontrol",
        ("9", "", "job script retrieval failed: Invalid user id\n", 0),
        ("8", "#!/bin/sh\n"),
    )
    assert slurm.batch_script("9") is None
    assert slurm.batch_script("8") == "#!/bin/sh\n"


def test_squeue_rows_parsed(programs):
    stand_in(programs, "squeue", ("", "CLUSTER: lab\x1e\n" + recorded("squeue")))
    rows = slurm.queue("iATrPNDMlVSeZj")
    assert {len(row) for row in rows} == {14}
    assert next(row for row in rows if row[0] == "64")[-1] == "odd | name, with\nbreaks JobState=FAILED"
    assert "--me" in (programs / "calls").read_text()


def test_sacct_rows_parsed(programs):
    stand_in(programs, "sacct", ("", "1\x1fa\x1fodd\nname\n2\x1fb\x1fx\n"))
    assert slurm.history(("JobID", "State", "JobName"), hours=2) == [("1", "a", "odd"), ("2", "b", "x")]
    assert "--starttime=now-7200seconds" in (programs / "calls").read_text()


def test_sacct_folder_with_line_break(programs):
    stand_in(programs, "sacct", ("", "CLUSTER: lab\n1\x1f/a\nb\n/c\x1fodd\nname\n2\x1f/d\x1fx\n"))
    assert slurm.history(("JobID", "WorkDir", "JobName")) == [("1", "/a\nb\n/c", "odd"), ("2", "/d", "x")]


def test_sacct_without_accounting_storage(programs):
    stand_in(programs, "sacct", ("", "", "Slurm accounting storage is disabled\n", 1))
    assert slurm.history(("JobID",)) is None


def test_slurm_time_format_of_user_overridden(programs, monkeypatch):
    """Times come in SLURM's standard format, whatever the user has set."""
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    path = stand_in(programs, "scontrol", ("", ""))
    path.write_text(
        path.read_text().replace("words = ", "import os; sys.exit(print(os.environ['SLURM_TIME_FORMAT']))\nwords = ")
    )
    assert slurm.show("config") == "standard\n"


def test_cluster_discovery_without_answering_controller(programs):
    """What works without a cluster also works when the controller does not answer."""
    assert discover_if_any(pytest.fail) is None
    stand_in(programs, "scontrol", ("", "", DOWN, 1))
    told: list[str] = []
    assert discover_if_any(told.append) is None
    assert "Unable to contact slurm controller" in told[0]
    with pytest.raises(NoAnswerError):
        discover()


def test_cluster_discovery_without_accounting_database(programs):
    """Discovery goes on when the accounting database does not answer."""
    stand_in_cluster(programs)
    assert discover().accounting.default_account == "ml"
    stand_in(programs, "sacctmgr", ("", "", DATABASE.replace("sacct", "sacctmgr"), 1))
    facts = discover()
    assert facts.accounting is None
    assert [each.name for each in facts.nodes] == ["node1", "node2", "node3", "node4", "node5"]
    assert "sacctmgr" in (programs / "calls").read_text()

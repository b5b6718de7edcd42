"""`dsrun diagnose` as a user calls it."""

import gzip
import json
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.runs.folder import RunFolder
from tests.cli.conftest import Dsrun
from tests.run_folders import event, finished_run, steps, write_run

CORPUS = Path(__file__).parents[1] / "data" / "causes"
OOM = CORPUS / "cuda_oom" / "tr-oom.txt"


def test_diagnose_failed_run_exits_3_with_line_and_fix(dsrun: Dsrun) -> None:
    """A failed run is reported with its log line and fix, and exit code 3."""
    done = dsrun("diagnose", str(OOM))
    assert done.returncode == 3
    assert done.stderr == ""
    lines = dict(line.split(None, 1) for line in done.stdout.splitlines())
    assert lines["cause"] == "cuda_oom: GPU memory exhausted"
    assert lines["rank"] == "1"
    assert lines["where"] == f"{OOM}:8"
    assert lines["line"].startswith("[rank1]: torch.OutOfMemoryError: CUDA out of memory.")
    assert "--micro-batch-size" in lines["fix"]


def test_diagnose_healthy_log_exits_0(dsrun: Dsrun) -> None:
    done = dsrun("diagnose", str(CORPUS / "none" / "tr-ok.txt"))
    assert (done.returncode, done.stdout) == (0, "none: no known sign of failure in 20 lines\n")


def test_diagnose_log_without_training_says_so(dsrun: Dsrun) -> None:
    """A log with neither a failure nor training is perhaps not the one that was meant."""
    done = dsrun("diagnose", str(CORPUS / "none" / "warnings.txt"))
    assert (done.returncode, done.stdout.split()[:2]) == (0, ["cause", "no_end:"])


def test_diagnose_json_findings(dsrun: Dsrun) -> None:
    done = dsrun("diagnose", "--format", "json", str(CORPUS / "nccl_network" / "gloo-peer-lost.txt"), str(OOM))
    output = json.loads(done.stdout)
    assert done.returncode == 3
    assert (output["version"], output["cause"], output["rank"]) == (1, "cuda_oom", 1)
    assert output["where"] == f"{OOM}:8"
    assert [found["code"] for found in output["findings"]] == ["cuda_oom", "nccl_network"]
    assert set(output["findings"][0]) == {"level", "code", "message", "fix", "where"}


def test_diagnose_json_of_healthy_run(dsrun: Dsrun) -> None:
    done = dsrun("diagnose", "--format", "json", str(CORPUS / "none" / "finished.txt"))
    output = json.loads(done.stdout)
    assert done.returncode == 0
    assert (output["cause"], output["rank"], output["findings"]) == ("none", None, [])


def test_diagnose_stdin_and_gzip(here: Path, environ: dict[str, str]) -> None:
    (here / "a.log.gz").write_bytes(gzip.compress(OOM.read_bytes()))
    for args, text in ((["-"], OOM.read_bytes()), (["a.log.gz"], b"")):
        done = subprocess.run(
            [sys.executable, "-m", "dsrun", "diagnose", *args],
            input=text,
            capture_output=True,
            cwd=here,
            env=environ,
            check=False,
        )
        assert done.returncode == 3
        assert done.stdout.startswith(b"cause    cuda_oom: ")


def test_diagnose_run_folder(dsrun: Dsrun, here: Path) -> None:
    logs = here / "run" / "logs"
    logs.mkdir(parents=True)
    (logs / "rank-1.attempt-0.log").write_text("OSError: [Errno 28] No space left on device\n")
    done = dsrun("diagnose", "run")
    assert done.returncode == 3
    assert "where    run/logs/rank-1.attempt-0.log:1\n" in done.stdout
    assert "rank     1\n" in done.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["none.log"], "error: none.log cannot be read: No such file or directory\n"),
        (["."], "error: . contains no logs (give log files, or the --output of a dsrun train)\n"),
        (
            [".", "a.log"],
            "error: . is a folder, and other logs are given (name one run, or only files)\n",
        ),
        (
            [],
            "error: Missing argument 'LOG...|FOLDER|-' "
            "(usage: dsrun diagnose [OPTIONS] LOG...|FOLDER|-; dsrun diagnose --help)\n",
        ),
    ],
)
def test_diagnose_usage_errors_are_one_line(dsrun: Dsrun, args: list[str], message: str) -> None:
    done = dsrun("diagnose", *args)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)


def test_diagnose_folder_with_logs_of_several_jobs(dsrun: Dsrun, here: Path) -> None:
    """Each job of a folder has its verdict; the logs of one job's ranks have one together."""
    logs = here / "logs"
    (logs / "ranks").mkdir(parents=True)
    (logs / "slurm-71.out").write_text("OSError: [Errno 28] No space left on device\n")
    (logs / "slurm-72.out").write_text("{'train_runtime': 12.0}\n")
    (logs / "slurm-72.err").write_text("all is well\n")
    (logs / "ranks" / "rank_0.log").write_text("RuntimeError: Connection reset by peer\n")
    (logs / "ranks" / "rank_1.log").write_text("ValueError: odd\n")
    (logs / "model.bin.log").write_bytes(b"\x7fELF" + bytes(100))
    done = dsrun("diagnose", "logs")
    assert done.returncode == 3
    jobs = {block.splitlines()[0]: block.splitlines()[1] for block in done.stdout.split("\n\n")}
    assert jobs == {
        "ranks": "cause    config_value: a setting is refused",
        "job 71": "cause    disk_full: disk or quota full",
        "job 72": "none: no known sign of failure in 2 lines of 2 logs",
    }
    found = json.loads(dsrun("diagnose", "--format", "json", "logs/slurm-71.out", "logs/slurm-72.out").stdout)
    assert {name: verdict["cause"] for name, verdict in found["jobs"].items()} == {
        "job 71": "disk_full",
        "job 72": "none",
    }


def test_diagnose_folder_of_run_folders(dsrun: Dsrun, here: Path) -> None:
    """A folder of run folders: each run has its verdict."""
    for name, text in (("a", "OSError: [Errno 28] No space left on device\n"), ("b", "a line\n")):
        (here / "runs" / name / "logs").mkdir(parents=True)
        (here / "runs" / name / ("run.json" if name == "a" else ".lock")).write_text("{}")
        (here / "runs" / name / "logs" / "rank-0.attempt-0.log").write_text(text)
    found = json.loads(dsrun("diagnose", "--format", "json", "runs").stdout)
    assert {name: verdict["cause"] for name, verdict in found["jobs"].items()} == {
        "runs/a": "disk_full",
        "runs/b": "none",
    }


def rows(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The lines by their first word."""
    return {line.split()[0]: line.split(None, 1)[1] for line in done.stdout.splitlines()}


def test_diagnose_of_finished_run_says_so(dsrun: Dsrun, here: Path) -> None:
    """When, after how many steps, with which loss, and where its model and checkpoint are."""
    run = finished_run(here / "run")
    (run / "model").mkdir()
    (run / "checkpoint-15").mkdir()
    done = dsrun("diagnose", "run")
    assert (done.returncode, done.stderr) == (0, "")
    said = rows(done)
    assert list(said) == ["state", "loss", "saved"]
    assert said["state"] == "finished at 2026-11-25T10:00:32.000Z, 30 steps in 32 s, no failure"
    assert said["loss"] == "0.1667; best eval_loss 1 at step 30"
    assert said["saved"] == "run/model, run/checkpoint-15"
    found = json.loads(dsrun("diagnose", "--format", "json", "run").stdout)
    assert (found["cause"], found["findings"]) == ("none", [])


def test_diagnose_of_finished_run_counts_its_failures(dsrun: Dsrun, here: Path) -> None:
    events = [
        event("start"),
        event("failure", 1, cause="rank_killed"),
        event("restart", 2),
        event("end", 9, exit_code=0),
    ]
    write_run(here / "run", events=events)
    said = rows(dsrun("diagnose", "run"))
    assert said == {"state": "finished at 2026-11-25T10:00:09.000Z, restarted after 1 failure"}


def test_diagnose_of_log_beside_a_run_is_of_the_log(dsrun: Dsrun, here: Path) -> None:
    finished_run(here)
    (here / "a.log").write_text("step 1\n")
    assert dsrun("diagnose", "a.log").stdout.startswith("cause    no_end: ")


def test_diagnose_of_running_run_says_so(dsrun: Dsrun, here: Path) -> None:
    run = write_run(here / "run", events=[event("start"), event("training", 1, step=0)], metrics=steps(3))
    with RunFolder(run).acquire():
        done = dsrun("diagnose", "run")
    assert done.returncode == 0
    assert rows(done)["state"] == "running: still running"
    assert "cause" not in rows(done)


@pytest.mark.parametrize("file", ["recipe.json", "run.json", ".lock"])
def test_diagnose_of_run_that_never_began(dsrun: Dsrun, here: Path, file: str) -> None:
    """It keeps nobody from the diagnosis of the runs beside it."""
    for name in ("a", "b"):
        (here / "runs" / name).mkdir(parents=True)
    (here / "runs" / "a" / file).write_text("{}")
    finished_run(here / "runs" / "b")
    done = dsrun("diagnose", "runs/a")
    assert done.returncode == 0
    assert rows(done)["state"].startswith("never began")
    assert dsrun("diagnose", "runs").stdout.count("state ") == 2


@pytest.mark.parametrize(("code", "cause", "returncode"), [(5, "unknown", 3), (75, "interrupted", 0)])
def test_diagnose_of_run_that_ended_with_an_exit_code(
    dsrun: Dsrun, here: Path, code: int, cause: str, returncode: int
) -> None:
    """Its end is recorded: nobody killed it."""
    write_run(here / "run", events=[event("start"), event("end", 9, exit_code=code)])
    done = dsrun("diagnose", "run")
    assert done.returncode == returncode
    said = rows(done)
    assert said["cause"].startswith(f"{cause}: ")
    assert f"exit code {code}" in said["line"]


def test_diagnose_binary_or_empty_file_is_usage_error(dsrun: Dsrun, here: Path) -> None:
    (here / "a").write_bytes(b"\x7fELF" + bytes(100))
    (here / "b").write_bytes(b"")
    for name, message in (("a", "a is not text (give a log)"), ("b", "b is empty")):
        done = dsrun("diagnose", name)
        assert (done.returncode, done.stderr) == (2, f"error: {message}\n")

"""`dsrun audit` as a user calls it."""

import json
import shutil
from pathlib import Path

from tests.cli.conftest import Dsrun

ROOT = Path(__file__).parents[2]
HEALTHY = ROOT / "tests" / "data" / "audit" / "healthy"


def affected_log(folder: Path) -> Path:
    log = folder / "train.log"
    log.write_text(
        "LOAD REPORT from: base\nKey | Status |\n----+--------+-\nmodel.layers.0.mlp.up_proj.weight | MISSING |\n"
    )
    return log


def test_audit_of_a_healthy_run_exits_0(dsrun: Dsrun) -> None:
    done = dsrun("audit", str(HEALTHY / "dsrun-t5-zero2"))
    assert (done.returncode, done.stderr) == (0, "")
    assert {line[:4] for line in done.stdout.splitlines()[:-2]} == {"PASS"}


def test_audit_says_what_affects_and_what_cannot_be_told(dsrun: Dsrun, here: Path) -> None:
    done = dsrun("audit", str(affected_log(here)))
    assert (done.returncode, done.stderr) == (3, "")
    lines = done.stdout.splitlines()
    assert [line.split("  ")[1] for line in lines if line.startswith("FAIL")] == ["weights newly initialised"]
    assert any(line.startswith("OPEN") and "look at" in line for line in lines)
    assert "1 failure" in lines[-1]


def test_audit_of_a_folder_with_several_runs(dsrun: Dsrun, here: Path) -> None:
    for name in ("trainer-llama", "trainer-zero2"):
        shutil.copytree(HEALTHY / name, here / "runs" / name)
    done = dsrun("audit", "runs")
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if line.startswith("runs/")] == [
        "runs/trainer-llama",
        "runs/trainer-zero2",
    ]
    found = json.loads(dsrun("audit", "runs", "--format", "json").stdout)
    assert (found["version"], [*found["runs"]]) == (1, ["runs/trainer-llama", "runs/trainer-zero2"])


def test_audit_json_has_the_keys_of_its_page(dsrun: Dsrun, here: Path) -> None:
    found = json.loads(dsrun("audit", "--format", "json", str(affected_log(here))).stdout)
    assert found["answers"]["missing_weights"] == "affected"
    assert {*found["answers"].values()} == {"affected", "not affected", "cannot tell"}
    page = (ROOT / "docs" / "audit.md").read_text()
    assert [key for key in found if f"`{key}`" not in page] == []


def test_audit_without_a_run_is_one_line(dsrun: Dsrun, here: Path) -> None:
    (here / "empty").mkdir()
    for path, message in (("empty", "contains no run, checkpoint or log"), ("nowhere", "does not exist")):
        done = dsrun("audit", path)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"error: {path} {message} (name a run's folder, a checkpoint or a log)\n"


def test_what_cannot_be_told_is_one_row_a_record(dsrun: Dsrun, here: Path) -> None:
    """Twenty facts that training_args.bin would tell; --all has them one by one."""
    log = str(HEALTHY / "trl-lora.log")
    rows = [line for line in dsrun("audit", log).stdout.splitlines() if line.startswith("OPEN")]
    every = [line for line in dsrun("audit", log, "--all").stdout.splitlines() if line.startswith("OPEN")]
    assert (len(rows) < 8, len(every) > 20) == (True, True)
    found = json.loads(dsrun("audit", log, "--format", "json").stdout)
    assert sum(each == "cannot tell" for each in found["answers"].values()) == len(every)


def test_a_damaged_log_among_others_ends_no_audit(dsrun: Dsrun, here: Path) -> None:
    (here / "logs").mkdir()
    affected_log(here / "logs")
    (here / "logs" / "half.log.gz").write_bytes(b"\x1f\x8b\x08half")
    found = json.loads(dsrun("audit", "logs", "--format", "json").stdout)["runs"]
    assert found["logs/train.log"]["answers"]["missing_weights"] == "affected"
    assert {*found["logs/half.log.gz"]["answers"].values()} == {"cannot tell"}
    assert dsrun("audit", "logs/half.log.gz").returncode == 2

"""`dsrun doctor` as a user calls it."""

import json
import re
import socket
import subprocess
import sys

import pytest

from dsrun.doctor.registry import CHECKS

ESCAPE = "\x1b"
RUN = "train: {model: demo-t5, zero: 2, global_batch_size: 64}\n"


def rows(text):
    """The status word of each check by its title."""
    lines = [line.split("  ") for line in text.splitlines() if line[:4] in ("PASS", "WARN", "FAIL", "SKIP")]
    return {parts[1]: parts[0] for parts in lines if len(parts) > 1 and parts[1]}


def codes_and_numbers(done):
    """The code and the numbers of every finding of `--format json`."""
    findings = [each for check in json.loads(done.stdout)["checks"] for each in check["findings"]]
    return [(each["code"], re.findall(r"\d+", each["message"])) for each in findings]


def test_doctor_of_a_job_that_will_work(dsrun, here):
    (here / "run.yaml").write_text(RUN)
    done = dsrun("doctor", "--for", "run.yaml", "--only", "settings", "--only", "files", "--only", "run_folder")
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(done.stdout) == {"settings": "PASS", "model and data files": "PASS", "run folder": "PASS"}
    assert done.stdout.endswith("\n3 passed\n")
    assert not (here / "runs").exists()


def test_doctor_of_flags_over_a_run_file(dsrun, here):
    (here / "run.yaml").write_text(RUN)
    args = ("--only", "settings", "--nproc", "3", "--for", "run.yaml", "--")
    assert codes_and_numbers(dsrun("doctor", "--format", "json", *args, "train")) == [("settings_batch", ["64", "3"])]
    done = dsrun("doctor", *args, "dsrun", "train", "--global-batch-size", "48")
    assert (done.returncode, rows(done.stdout)) == (0, {"settings": "PASS"})
    assert re.search(r"\b48 = 8 × 3\D+ × 2\b", done.stdout)
    refused = dsrun("doctor", "--", "python", "train.py")
    said = "error: python is not dsrun's own training, whose flags alone are known (-- train --model …)\n"
    assert (refused.returncode, refused.stdout, refused.stderr) == (2, "", said)


def test_doctor_failure_exits_3_with_fix_below(dsrun, here):
    (here / "run.yaml").write_text("train: {model: demo-t5, zero: 2, fp16: true, bf16: true}\n")
    done = dsrun("doctor", "--for", "run.yaml", "--only", "settings")
    assert done.returncode == 3
    assert rows(done.stdout) == {"settings": "FAIL"}
    assert done.stdout.splitlines()[1].strip().startswith("-> ")


def test_doctor_warning_exits_0(dsrun, environ):
    environ["NCCL_P2P_DISABLE"] = "1"
    done = dsrun("doctor", "--only", "variables")
    assert done.returncode == 0
    assert "-> unset NCCL_P2P_DISABLE" in done.stdout


def test_doctor_sees_this_machine_port_and_variables(dsrun, environ):
    environ["RANK"] = "0"
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen()
        port = server.getsockname()[1]
        done = dsrun("doctor", "--master-port", str(port), "--only", "port", "--only", "variables")
    assert done.returncode == 3
    assert rows(done.stdout) == {"rendezvous port": "FAIL", "left-over variables": "FAIL"}
    assert f"port {port} is taken by" in done.stdout


def test_doctor_json(dsrun):
    done = dsrun("doctor", "--format", "json", "--nproc", "2")
    output = json.loads(done.stdout)
    assert output["version"] == 1
    assert [each["check"] for each in output["checks"]] == [check.code for check in CHECKS]
    statuses = [each["status"] for each in output["checks"]]
    counted = {"pass": "passed", "warn": "warned", "fail": "failed", "skip": "skipped"}
    assert {name: output[name] for name in counted.values()} == {v: statuses.count(k) for k, v in counted.items()}
    assert done.returncode == (3 if output["failed"] else 0)
    (ranks,) = next(each["findings"] for each in output["checks"] if each["check"] == "ranks")
    assert (ranks["level"], ranks["code"], re.findall(r"\d+", ranks["message"])) == ("info", "ranks", ["2"])


def test_doctor_without_gpus_that_are_required(dsrun):
    done = dsrun("doctor", "--min-gpus", "4", "--only", "requirements", "--format", "json")
    assert (done.returncode, codes_and_numbers(done)) == (3, [("requirements_gpus", ["0", "4"])])


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--only", "ports"], "error: --only ports: there is no such check (did you mean port?)\n"),
        (["--for", "no.yaml"], "error: --for no.yaml: there is no such file (name the run.yaml of a job)\n"),
        (["--node-rank", "1"], "error: --node-rank 1, but not of how many (add --nodes N)\n"),
    ],
)
def test_doctor_usage_errors(dsrun, args, said):
    done = dsrun("doctor", *args)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)


# A registry whose checks crash, hang and pass, and a limit that is short enough for a test.
STRANGE = """
import threading
from dsrun.cli.main import main
from dsrun.doctor import registry
from dsrun.findings.checks import Check
from dsrun.findings.finding import Finding

def crash(machine, target):
    raise RuntimeError("no such luck")

def hang(machine, target):
    threading.Event().wait()

registry.LIMIT_S = 0.2
registry.CHECKS = (
    Check("crash", "crashing", crash),
    Check("hang", "hanging", hang),
    Check("good", "good", lambda *_: [Finding(level="info", code="good", message="fine")]),
)
main()
"""


def test_crashing_and_hanging_checks_are_rows(here, environ):
    done = subprocess.run(
        [sys.executable, "-c", STRANGE, "doctor"], cwd=here, env=environ, text=True, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(done.stdout) == {"crashing": "WARN", "hanging": "WARN", "good": "PASS"}
    assert re.search(r" crashing +.*RuntimeError: no such luck", done.stdout)
    assert re.search(r" hanging +.* 0\.2 s$", done.stdout, re.MULTILINE)


def test_doctor_imports_no_heavy_library(here, environ):
    code = (
        "import sys\nfrom dsrun.cli.main import main\ntry:\n    main()\nfinally:\n"
        "    print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)\n"
    )
    (here / "run.yaml").write_text(RUN)
    argv = [sys.executable, "-c", code, "doctor", "--for", "run.yaml"]
    done = subprocess.run(argv, cwd=here, env=environ, text=True, capture_output=True, check=False)
    loaded = set(done.stderr.split())
    assert "click" in loaded
    assert not loaded & {"torch", "transformers", "deepspeed", "numpy", "datasets", "accelerate", "peft"}


def test_doctor_colours_on_a_terminal_only(on_terminal, dsrun, environ):
    args = ("doctor", "--only", "port")
    assert f"{ESCAPE}[3" in on_terminal(*args)
    assert ESCAPE not in dsrun(*args).stdout
    environ["NO_COLOR"] = "1"
    assert ESCAPE not in on_terminal(*args)

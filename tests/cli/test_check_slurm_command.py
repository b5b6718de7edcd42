"""`dsrun check-slurm` as a user calls it."""

import json
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "data" / "sbatch"


def test_errors_have_lines_and_exit_code_3(dsrun):
    done = dsrun("check-slurm", str(SCRIPTS / "batch-shell.sh"))
    assert (done.returncode, done.stderr) == (3, "")
    assert "batch-shell.sh:6: torchrun starts in the batch shell" in done.stdout
    assert done.stdout.endswith("batch-shell.sh: 1 error\n")


def test_json_of_findings(dsrun):
    done = dsrun("check-slurm", str(SCRIPTS / "signal.sh"), "--format", "json")
    (found,) = json.loads(done.stdout)["findings"]
    assert (done.returncode, found["code"], found["level"]) == (3, "script_signal_not_to_batch", "error")


def test_good_script_has_exit_code_0(dsrun):
    done = dsrun("check-slurm", str(SCRIPTS / "good-torchrun-c10d.sh"))
    assert (done.returncode, done.stdout.rpartition(": ")[2]) == (0, "no findings\n")


def test_convert_prints_a_script_of_render_slurm(dsrun, tmp_path):
    done = dsrun("check-slurm", "--convert", str(SCRIPTS / "no-rendezvous.sh"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=t\n#SBATCH --nodes=2\n")
    assert "dsrun render-slurm --job-name t" in done.stderr
    assert "no-rendezvous.sh:6: gone in this script: torchrun on 2 nodes" in done.stderr
    rendered = tmp_path / "rendered.sh"
    rendered.write_text(done.stdout)
    assert dsrun("check-slurm", str(rendered)).returncode == 0


def test_convert_names_the_faults_that_stay(dsrun, tmp_path):
    (tmp_path / "job.sh").write_text("#!/bin/bash\n#SBATCH --time=48 --gpus-per-node=4\nsrun torchrun t.py\n")
    done = dsrun("check-slurm", "--convert", str(tmp_path / "job.sh"))
    fates = [
        line.rpartition("job.sh:")[2].split(" in this script")[0]
        for line in done.stderr.splitlines()
        if " in this script" in line
    ]
    assert fates == ["2: still", "3: gone"]


def test_missing_file(dsrun):
    done = dsrun("check-slurm", "nothing.sh")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "name an sbatch script" in done.stderr

"""Jobs and machines with GPUs that torch does not see. The torch of the tests is built for CPUs, as in the field."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.errors import EXIT_MISSING, MissingError, UsageError
from dsrun.launch import expected_gpus
from dsrun.launch.expected_gpus import check_driver, check_program, check_rank
from dsrun.launch.expected_gpus import expected_gpus as read
from dsrun.system.variables import FAILURES, GPUS
from tests.forkserver.client import HEAVY

JOB_BASH = Path(__file__).parents[3] / "slurm" / "job.bash"
NO_GPU_HERE = pytest.mark.skipif(bool(expected_gpus.visible_gpus()), reason="this machine has GPUs")


def test_number_of_gpus_is_read():
    assert [read({}), read({GPUS: "0"}), read({GPUS: "8"})] == [0, 0, 8]
    with pytest.raises(UsageError, match="DSRUN_GPUS=many"):
        read({GPUS: "many"})


def test_fewer_gpus_that_somebody_chose_are_enough():
    """CUDA_VISIBLE_DEVICES that names none is no choice: the job has asked for GPUs."""
    for visible, count in (("0,1", 2), ("0,1,2,3", 4), ("", 4), ("-1", 4), ("NoDevFiles", 4), ("MIG-a,MIG-b", 1)):
        assert read({GPUS: "4", "CUDA_VISIBLE_DEVICES": visible}) == count
    assert read({GPUS: "4", "CUDA_VISIBLE_DEVICES": "0,1,2", "HIP_VISIBLE_DEVICES": "0,1"}) == 2


def test_driver_that_shows_too_few():
    """None at all may be another vendor's GPUs: then torch decides."""
    with pytest.raises(MissingError, match="sees 6 of the 8"):
        check_driver(6, {GPUS: "8"})
    for shown, expected in ((8, "8"), (0, "8"), (2, "0")):
        check_driver(shown, {GPUS: expected})


@pytest.mark.train
@NO_GPU_HERE
def test_rank_with_fewer_gpus_than_the_job_ends(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURMD_NODENAME", "node7")
    monkeypatch.setenv("SLURM_JOB_ID", "1")
    monkeypatch.setenv(FAILURES, str(tmp_path))
    with pytest.raises(MissingError, match=r"node7: torch sees 0 of the 4 GPUs .*torch \d.*not compiled with CUDA"):
        check_rank({GPUS: "4"})
    assert (tmp_path / "no-gpus").exists()
    check_rank({GPUS: "0"})


@pytest.mark.train
@NO_GPU_HERE
def test_machine_with_gpus_that_torch_does_not_see(tmp_path):
    """CUDA_VISIBLE_DEVICES can say that none is wanted, as `--use-cpu` does."""
    (tmp_path / "dev").mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    with pytest.raises(MissingError, match=r"which are 2 .*--use-cpu"):
        check_rank({}, tmp_path)
    check_rank({"CUDA_VISIBLE_DEVICES": ""}, tmp_path)
    check_rank({"CUDA_VISIBLE_DEVICES": "NoDevFiles"}, tmp_path)
    check_rank({}, tmp_path / "dev")


@pytest.mark.train
@NO_GPU_HERE
def test_python_of_a_program_is_asked(tmp_path):
    """A Python without torch says nothing, and one that cannot be started is no reason to end the job."""
    environ = {**os.environ, GPUS: "2"}
    with pytest.raises(MissingError, match="torch sees 0 of the 2 GPUs"):
        check_program(sys.executable, environ, print)
    check_program(sys.executable, {**environ, GPUS: "0"}, print)
    (tmp_path / "torch.py").write_text("raise ImportError\n")
    check_program(sys.executable, {**environ, "PYTHONPATH": str(tmp_path)}, print)
    notes = []
    check_program(str(tmp_path / "nothing"), environ, notes.append)
    (tmp_path / "torch.py").write_text("raise RuntimeError('a broken installation')\n")
    check_program(sys.executable, {**environ, "PYTHONPATH": str(tmp_path)}, notes.append)
    assert len(notes) == 2
    assert "a broken installation" in notes[1]


@pytest.mark.parametrize(("program", "code", "said"), [("", 0, False), ("exit(4)", 4, False), ("exit(1)", 0, True)])
def test_node_of_a_job_without_supervisor(program, code, said, tmp_path):
    """Its job script asks the workers' Python, and says so where that cannot tell."""
    script = f'source "{JOB_BASH}"; gpu_check=$1; check_gpus "$2" -m torch.distributed.run x.py'
    environ = {**os.environ, GPUS: "2", FAILURES: str(tmp_path)}
    argv = ["bash", "-c", script, "job", program, sys.executable]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, "not known" in done.stderr) == (code, said)
    assert (tmp_path / "no-gpus").exists() is (code == 4)


@pytest.mark.train
@NO_GPU_HERE
@pytest.mark.parametrize(
    "words",
    [
        ["launch", "--nproc", "2", "--", "python", "script.py"],
        ["train", "--model", "demo-t5", "--zero", "2", "--nproc", "2", "--max-steps", "1"],
    ],
    ids=["script", "train"],
)
def test_job_with_gpus_does_not_train_on_its_cpus(tmp_path, words):
    """It ends with code 4, once, before anything is loaded."""
    (tmp_path / "script.py").write_text("open('began', 'w')\n")
    environ = {**os.environ, GPUS: "2", "SLURMD_NODENAME": "node7"}
    done = HEAVY.run([sys.executable, "-m", "dsrun", *words], cwd=tmp_path, env=environ, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("torch sees 0 of the 2 GPUs")) == (EXIT_MISSING, 1)
    assert "node7" in done.stderr
    assert not (tmp_path / "began").exists()

"""Which variables go along to other machines."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.launch.environment import forwarded_variables, parse_environment_file


def test_environment_forwarding_takes_training_variables_only():
    """What matters to training is forwarded, and nothing else."""
    goes = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "x", "PATH": "/bin", "OMP_NUM_THREADS": "2", "DSRUN_CACHE": "c"}
    goes |= {"HF_ENDPOINT": "u", "MODELSCOPE_API_TOKEN": "t"}
    stays = {
        "HOME": "/home/me",
        "SSH_AUTH_SOCK": "s",
        "CUDA_VISIBLE_DEVICES": "0",
        "SLURM_JOB_ID": "1",
        "PWD": "/",
    }
    assert forwarded_variables({**goes, **stays}, {}) == goes


def test_environment_forwarding_skips_outer_supervisor():
    """What an outer supervisor has set for itself is not forwarded."""
    assert (
        forwarded_variables({"DSRUN_RUN_ID": "a", "DSRUN_STOP_FILE": "/tmp/stop", "DSRUN_HEARTBEAT": "/tmp/h"}, {})
        == {}
    )


def test_environment_file_overrides_forwarded_variables():
    """Variables of the environment file override forwarded ones."""
    assert forwarded_variables({"NCCL_DEBUG": "INFO"}, {"NCCL_DEBUG": "WARN", "MINE": "1"}) == {
        "NCCL_DEBUG": "WARN",
        "MINE": "1",
    }


def test_environment_file_names_and_values_parsed():
    text = "# for all\nNCCL_DEBUG=INFO\n\nexport WORDS = 'a b'\n".replace(" = ", "=") + 'EMPTY=\nURL="http://x?a=b"\n'
    assert parse_environment_file(text, "file") == {
        "NCCL_DEBUG": "INFO",
        "WORDS": "a b",
        "EMPTY": "",
        "URL": "http://x?a=b",
    }


def test_environment_file_error_names_line():
    """A line that is not NAME=VALUE is named."""
    with pytest.raises(UsageError, match="file:2: 'NCCL_DEBUG INFO' is not NAME=VALUE"):
        parse_environment_file("A=1\nNCCL_DEBUG INFO\n", "file")

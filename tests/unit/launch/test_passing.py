"""Which variables go along to other machines."""

from __future__ import annotations

import pytest

from dsrun.errors import UsageError
from dsrun.launch.passing import parse_environment_file, passed_on


def test_what_matters_to_training_goes_along_and_nothing_else():
    goes = {"NCCL_DEBUG": "INFO", "HF_TOKEN": "x", "PATH": "/bin", "OMP_NUM_THREADS": "2", "DSRUN_CACHE": "c"}
    stays = {
        "HOME": "/home/me",
        "SSH_AUTH_SOCK": "s",
        "CUDA_VISIBLE_DEVICES": "0",
        "SLURM_JOB_ID": "1",
        "PWD": "/",
    }
    assert passed_on({**goes, **stays}, {}) == goes


def test_what_a_supervisor_above_has_set_for_itself_stays():
    assert (
        passed_on({"DSRUN_FAMILY": "a", "DSRUN_STOP_FILE": "/tmp/stop", "DSRUN_HEARTBEAT": "/tmp/h"}, {})
        == {}
    )


def test_the_environment_file_wins():
    assert passed_on({"NCCL_DEBUG": "INFO"}, {"NCCL_DEBUG": "WARN", "MINE": "1"}) == {
        "NCCL_DEBUG": "WARN",
        "MINE": "1",
    }


def test_an_environment_file_is_names_and_values():
    text = (
        "# for all\nNCCL_DEBUG=INFO\n\nexport WORDS = 'a b'\n".replace(" = ", "=")
        + 'EMPTY=\nURL="http://x?a=b"\n'
    )
    assert parse_environment_file(text, "file") == {
        "NCCL_DEBUG": "INFO",
        "WORDS": "a b",
        "EMPTY": "",
        "URL": "http://x?a=b",
    }


def test_a_line_that_is_none_is_named():
    with pytest.raises(UsageError, match="file:2: 'NCCL_DEBUG INFO' is not NAME=VALUE"):
        parse_environment_file("A=1\nNCCL_DEBUG INFO\n", "file")

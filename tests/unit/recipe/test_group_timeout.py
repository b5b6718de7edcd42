"""The time-out of the process group: --ddp_timeout in seconds, DEEPSPEED_TIMEOUT in minutes."""

from __future__ import annotations

import datetime
import os

import pytest
import torch.distributed.distributed_c10d as c10d

from dsrun.errors import UsageError
from dsrun.recipe.deepspeed_file import DEFAULT_S, group_timeout_s
from dsrun.train.base import distributed
from dsrun.train.base.distributed import DistributedWorld


@pytest.mark.parametrize(
    ("flag", "environ", "seconds"),
    [
        (None, {}, DEFAULT_S),
        (30, {}, 30.0),
        (None, {"DEEPSPEED_TIMEOUT": "5"}, 300.0),
        (30, {"DEEPSPEED_TIMEOUT": "5"}, 30.0),
    ],
)
def test_time_out_of_process_group(flag, environ, seconds):
    assert group_timeout_s(flag, environ) == seconds


@pytest.mark.parametrize(
    ("flag", "environ"), [(0, {}), (None, {"DEEPSPEED_TIMEOUT": "0.5"}), (30, {"DEEPSPEED_TIMEOUT": ""})]
)
def test_time_out_that_its_reader_refuses(flag, environ):
    """DeepSpeed's import fails with that variable, in each rank and each attempt."""
    with pytest.raises(UsageError):
        group_timeout_s(flag, environ)


@pytest.mark.parametrize("group", ["of all", "of DeepSpeed"])
def test_time_out_holds_for_every_group(group, monkeypatch):
    """DeepSpeed gives its own groups none: they would have torch's."""
    given = []
    for name in ("default_pg_timeout", "default_pg_nccl_timeout"):
        monkeypatch.setattr(c10d, name, getattr(c10d, name))
    monkeypatch.setattr(distributed.dist, "init_process_group", lambda *args, **more: given.append(more["timeout"]))
    world = DistributedWorld(rank=0, size=1, local_rank=0, local_size=1, device="cpu", group_timeout_s=30.0)
    distributed.init_process_group(world, deepspeed=False)
    found = given[0] if group == "of all" else c10d._get_default_timeout("gloo")
    assert found == c10d.default_pg_nccl_timeout == datetime.timedelta(seconds=30)


def test_flag_reaches_the_world(monkeypatch):
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DEEPSPEED_TIMEOUT", raising=False)
    assert distributed.world_from_env(use_cpu=True, ddp_timeout=30).group_timeout_s == 30.0
    assert os.environ["LOCAL_RANK"] == "0"

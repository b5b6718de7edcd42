"""What `dsrun launch` and `dsrun train` make of their options for one machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dsrun.errors import UsageError
from dsrun.launch.context import LocalWorkers
from dsrun.launch.launcher_line import parse_torchrun
from dsrun.launch.node.work import LaunchOptions, launch_command, merge_launcher, training_job, training_work
from dsrun.launch.supervisor.policy import RestartLimits
from dsrun.recipe.preflight.elastic import batches_by_nodes
from dsrun.recipe.resolve import resolve


@pytest.mark.parametrize(
    ("options", "flags", "limits"),
    [
        ({"max_restarts": 0, "remedy": False}, [], RestartLimits(max_restarts=0, remedy=False)),
        ({"max_restarts": 0}, ["--max-restarts", "7"], RestartLimits(max_restarts=0, remedy=True)),
        ({}, ["--max-restarts", "7", "--no-remedy"], RestartLimits(max_restarts=7, remedy=False)),
    ],
)
def test_limits_of_launch_before_those_of_the_recipe(
    tmp_path: Path, options: dict[str, Any], flags: list[str], limits: RestartLimits
) -> None:
    recipe = resolve(["--model", "demo-t5", *flags], tmp_path)
    workers = LocalWorkers(1, "cpu", 1)
    job = training_job(LaunchOptions(**options), workers, recipe=recipe, run=tmp_path, env={})
    assert job.limits == limits


@pytest.mark.parametrize(("nproc", "workers"), [(2, 2), (None, 3)])
def test_workers_of_launch_before_those_of_the_recipe(tmp_path: Path, nproc: int | None, workers: int) -> None:
    recipe = resolve(["--model", "demo-t5", "--use-cpu", "--nproc", "3"], tmp_path)
    assert training_work(recipe, LaunchOptions(nproc=nproc)).topology.workers == workers


def test_batch_of_an_elastic_demo_is_that_of_all_nodes(tmp_path: Path) -> None:
    recipe, options = resolve(["--model", "demo-t5", "--use-cpu"], tmp_path), LaunchOptions(nproc=1, elastic="1:2")
    work = training_work(recipe, options, nodes=2)
    batches = batches_by_nodes(work.recipe, work.elastic, 2, 1)
    assert [(batches[n].global_batch, batches[n].micro_batch) for n in (1, 2)] == [(256, 128), (256, 128)]
    with pytest.raises(UsageError, match="256"):
        training_work(recipe, LaunchOptions(nproc=1, elastic="2:3"), nodes=3)


@pytest.mark.parametrize("own", [2, None])
def test_torchrun_may_say_the_same_as_launch(own: int | None) -> None:
    options = merge_launcher(LaunchOptions(nproc=own, output="run"), parse_torchrun(["--nproc-per-node=2", "x.py"]))
    assert (options.nproc, options.output) == (2, "run")


def test_torchrun_may_not_say_another_thing_than_launch() -> None:
    with pytest.raises(UsageError, match="--nproc 2 for dsrun launch, but 3 for torchrun"):
        merge_launcher(LaunchOptions(nproc=2), parse_torchrun(["--nproc-per-node=3", "x.py"]))


def test_same_line_has_what_was_given_to_launch() -> None:
    line = parse_torchrun(["--rdzv-endpoint=h:29400", "--nnodes=2", "x.py"])
    options = LaunchOptions(node_rank=0, master_addr="h", output="run", hang_timeout=0.0, warm=False)
    assert launch_command(line, merge_launcher(options, line)) == (
        "dsrun launch --nodes 2 --node-rank 0 --master-addr h --master-port 29400 --output run --hang-timeout 0.0"
        " --no-warm -- python x.py"
    )

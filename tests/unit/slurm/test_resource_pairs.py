"""Two options that ask for the same resource: a job gets what both ask for, or is refused."""

from __future__ import annotations

from itertools import combinations

import pytest

from dsrun.errors import UsageError
from dsrun.launch.program import any_program
from dsrun.slurm.render.environment import gpus_of
from dsrun.slurm.render.job_script import completed, directives, render_script
from dsrun.slurm.render.notation import mib
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.site import ClusterSite
from dsrun.slurm.render.spec import make_spec, run_file_value
from dsrun.slurm.resources import request
from tests.unit.slurm.stand_ins import spec_of

# Values of each option of resources, of which some agree with those of others, and some do not.
VALUES = {
    "nodes": ("1", "2"),
    "ntasks": ("1", "2", "4"),
    "ntasks_per_node": ("1", "4"),
    "gpus": ("2", "4", "a100:4"),
    "gpus_per_node": ("1", "2", "a100:2"),
    "gpus_per_task": ("1", "2"),
    "gres": ("gpu:2", "gpu:a100:2", "gpu:1,nvme:1"),
    "cpus_per_task": ("2", "8"),
    "cpus_per_gpu": ("4",),
    "mem": ("8G",),
    "mem_per_cpu": ("1G",),
    "mem_per_gpu": ("2G",),
    "exclusive": ("true",),
}
SITE = ClusterSite(gpus_per_node=2, cores_per_gpu=4)
PROGRAM = any_program(["true"])


def asked(name: str, value: str, got: SlurmSpec) -> bool:
    """Whether a job whose every node has what `got` says, and one task, has what the option asks for."""
    gpus, cpus, memory = gpus_of(got), got.cpus_per_task or 1, request(got).memory
    count = int(value.rpartition(":")[2]) if value[-1].isdigit() else 0
    return {
        "nodes": got.nodes == count,
        "ntasks": got.nodes == count,
        "ntasks_per_node": count == 1,
        "gpus": gpus * got.nodes == count,
        "gpus_per_node": gpus == count,
        "gpus_per_task": gpus == count,
        "gres": gpus == int(value.partition(",")[0].rpartition(":")[2]) if name == "gres" else True,
        "cpus_per_task": cpus == count,
        "cpus_per_gpu": cpus == count * gpus,
        "mem": memory == mib(value),
        "mem_per_cpu": memory == (mib(value) or 0) * cpus,
        "mem_per_gpu": memory == (mib(value) or 0) * gpus,
        "exclusive": got.exclusive,
    }[name]


def twice() -> list[dict[str, str]]:
    return [
        {first: one, second: other}
        for first, second in combinations(VALUES, 2)
        for one in VALUES[first]
        for other in VALUES[second]
    ]


def result(options: dict[str, str]) -> SlurmSpec | None:
    """The completed spec; None where it is refused."""
    try:
        spec = completed(spec_of(**options), PROGRAM, SITE)
        render_script(spec, PROGRAM, SITE)
    except UsageError:
        return None
    return spec


def test_job_has_what_each_of_two_options_asks_for_or_is_refused():
    wrong = [
        options
        for options in twice()
        if (got := result(options)) and not all(asked(name, value, got) for name, value in options.items())
    ]
    assert wrong == []


def test_only_options_that_differ_or_that_sbatch_takes_one_of_are_refused():
    refused = {tuple(options) for options in twice() if result(options) is None}
    taken = {tuple(options) for options in twice() if result(options) is not None}
    always = {each for each in refused - taken if "ntasks" not in each}
    assert always == {
        ("gpus_per_node", "gres"), ("gpus", "gres"), ("gpus_per_task", "gres"), ("cpus_per_task", "cpus_per_gpu"),
        ("mem", "mem_per_cpu"), ("mem", "mem_per_gpu"), ("mem_per_cpu", "mem_per_gpu"),
    }  # fmt: skip
    assert {each for each in taken & refused if not {"ntasks", "ntasks_per_node"} & {*each}} == {
        ("gpus", "gpus_per_node"), ("gpus", "gpus_per_task"), ("gpus_per_node", "gpus_per_task"),
    }  # fmt: skip


def test_directives_ask_sbatch_once_for_each_resource():
    groups = (("gpus", "gres"), ("cpus-per",), ("mem",), ("ntasks",), ("nodes",))
    for options in twice():
        if spec := result(options):
            lines = directives(spec, PROGRAM, SITE)
            for group in groups:
                found = [line for line in lines if line.startswith(tuple(f"--{each}" for each in group))]
                assert len(found) <= 1, (options, found)


@pytest.mark.parametrize(
    ("options", "flag"),
    [
        ({"gpus": "4", "gpus_per_node": "1"}, "gpus"),
        ({"nodes": "3", "gpus": "8"}, "gpus"),
        ({"gpus": "many"}, "gpus"),
        ({"gpus_per_task": "2", "gpus_per_node": "1"}, "gpus_per_task"),
        ({"gres": "gpu:2,gpu:1"}, "gres"),
        ({"gres": "gpu:a100:2,gpu:1"}, "gres"),
        ({"cpus_per_task": "2", "cpus_per_gpu": "4"}, "cpus_per_gpu"),
        ({"mem": "8G", "mem_per_gpu": "2G"}, "mem_per_gpu"),
        ({"mem_per_cpu": "lots"}, "mem_per_cpu"),
        ({"ntasks": "16", "nodes": "2"}, "ntasks"),
        ({"ntasks_per_node": "8"}, "ntasks_per_node"),
    ],
)
def test_contradiction_is_refused_by_its_flag(options, flag):
    with pytest.raises(UsageError) as refused:
        spec_of(**options)
    assert refused.value.message.startswith(f"slurm.{flag}: ")
    assert refused.value.fix


@pytest.mark.parametrize(
    "key", ["gpus", "gpus-per-task", "gpus-per-socket", "tres-per-task", "cpus-per-gpu", "mem-per-gpu"]
)
def test_resources_have_flags_of_their_own_beside_sbatch(key):
    with pytest.raises(UsageError, match=rf"sbatch: {key} "):
        spec_of(sbatch=[f"{key}=1"])
    assert spec_of(sbatch=["switches=1"], gpus_per_node="2").sbatch == ("switches=1",)


@pytest.mark.parametrize(
    ("stronger", "weaker", "meant"),
    [
        ({"gpus": "8", "nodes": "2"}, {"gpus_per_node": "a100:2"}, {"gpus_per_node": "4", "nodes": 2}),
        ({"cpus_per_gpu": "4"}, {"cpus_per_task": "2"}, {"cpus_per_gpu": 4, "cpus_per_task": None}),
        ({"mem": "8G"}, {"mem_per_gpu": "2G"}, {"mem": "8G", "mem_per_gpu": None}),
        ({"mem": "8G"}, {"cpus_per_task": "2"}, {"mem": "8G", "cpus_per_task": 2}),
    ],
)
def test_flag_replaces_other_option_of_run_file_for_its_resource(stronger, weaker, meant):
    places = [[run_file_value(key, [word], key) for key, word in place.items()] for place in (stronger, weaker)]
    spec = make_spec(*places)
    assert {name: getattr(spec, name) for name in meant} == meant


@pytest.mark.parametrize("name", ["cpus_per_gpu", "mem_per_gpu"])
def test_share_of_gpus_needs_gpus(name):
    for given in ({"gpus_per_node": "0"}, {"nproc": "2"}):
        with pytest.raises(UsageError, match="the job has no GPUs"):
            render_script(spec_of(**{name: "4"}, **given), PROGRAM, SITE)

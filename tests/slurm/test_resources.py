"""What two options of a job ask for is what SLURM allocates; lists of partitions with limits; programs."""

from __future__ import annotations

import json
import shutil
import tempfile
from itertools import combinations
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.launch.program import any_program
from dsrun.slurm.render.environment import gpus_of
from dsrun.slurm.render.job_script import completed, render_script
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.site import ClusterSite
from dsrun.slurm.render.spec import make_spec, run_file_value
from dsrun.slurm.resources import request
from tests.slurm.cluster import Cluster
from tests.slurm.configuration import Options
from tests.slurm.jobs import Person

VALUES = {
    "nodes": "2", "ntasks": "2", "ntasks_per_node": "1", "gpus": "2", "gpus_per_node": "a100:2", "gpus_per_task": "2",
    "gres": "gpu:2", "cpus_per_task": "3", "cpus_per_gpu": "2", "mem": "900M", "mem_per_cpu": "300M",
    "mem_per_gpu": "400M", "exclusive": "true",
}  # fmt: skip
ALLOCATED = """
srun --ntasks-per-node=1 ${SLURM_CPUS_PER_TASK:+-c "$SLURM_CPUS_PER_TASK"} bash -c '[ "$SLURM_PROCID" != 0 ] ||
    echo "$CUDA_VISIBLE_DEVICES" >"$SLURM_JOB_ID.gpus"'
"""


def with_body(script: str, body: str) -> str:
    """The `#SBATCH` lines of a rendered script with another body: torch takes seconds to start."""
    return script[: script.index("# Rendered by")] + body


def jobs_of_pairs() -> dict[str, SlurmSpec]:
    """The completed specs of all pairs that are taken, by what they say of resources."""
    site, program = ClusterSite(gpus_per_node=2, cores_per_gpu=1), any_program(["true"])
    found = {}
    for pair in combinations(VALUES, 2):
        try:
            spec = completed(make_spec([run_file_value(name, [VALUES[name]], name) for name in pair]), program, site)
            render_script(spec, program, site)
        except UsageError:
            continue
        names = ("nodes", "gpus_per_node", "gres", "cpus_per_task", "mem", "mem_per_cpu", "mem_per_gpu", "exclusive")
        found[json.dumps([getattr(spec, name) for name in names])] = spec
    return found


def test_slurm_allocates_what_pairs_of_options_ask_for(ada, place):
    program, site = any_program(["true"]), ClusterSite(gpus_per_node=2, cores_per_gpu=1)
    specs = jobs_of_pairs()
    assert len(specs) >= 20
    jobs = {
        ada.sbatch(with_body(render_script(each, program, site), ALLOCATED), cwd=place): each for each in specs.values()
    }
    for job, spec in jobs.items():
        job.wait_for("COMPLETED")
        assert len((place / f"{job.id}.gpus").read_text().split(",")) == gpus_of(spec), spec
        allocated = dict(word.split("=") for word in job.fact("TRES").split(","))
        assert int(allocated["node"]) == spec.nodes
        if not spec.exclusive:
            assert int(allocated["cpu"]) == spec.nodes * (spec.cpus_per_task or 1), spec
            wanted = request(spec).memory
            assert wanted is None or float(allocated["mem"].rstrip("MG")) == spec.nodes * wanted, (spec, allocated)


def test_script_with_its_functions_runs(ada, place):
    """--inline: its functions are those of the file beside other scripts; memory goes with the GPUs."""
    options = ["-G", "4", "-N", 2, "--mem-per-gpu", "400M", "--nproc", 1, "--inline", "--no-supervise"]
    job = ada.submit(*options, program=["bash", "-c", 'echo "$CUDA_VISIBLE_DEVICES" >$RANK'], cwd=place)
    job.wait_for("COMPLETED")
    assert [(place / rank).read_text() for rank in "01"] == ["0,1\n", "0,1\n"]
    assert "mem=1600M" in job.fact("TRES")


@pytest.fixture(scope="module")
def limited():
    """A node with four GPUs and one with eight, in partitions whose limits a job has to keep, all of them."""
    root = Path(tempfile.mkdtemp(prefix="slurm-"))
    root.chmod(0o755)
    cluster = Cluster(root)
    lines = ("PartitionName=four Nodes=node1 MaxTime=60", "PartitionName=eight Nodes=node2 MaxTime=30")
    try:
        cluster.up(Options(nodes=2, gpus=("a100:4", "rtx:8"), cpus=32, lines=(*lines, "EnforcePartLimits=ALL")))
        yield Person(cluster, "ada", root / "home" / "ada")
    finally:
        cluster.down()
        shutil.rmtree(root)


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (["--time", "45"], "slurm_time_limit"),
        (["--nodes", "2", "--time", "10"], "slurm_nodes"),
        (["--nodelist", "node1", "--time", "10"], "slurm_node_elsewhere"),
        (["--gpus-per-node", "a100:4", "--time", "10"], None),
        (["--gpus-per-node", "8", "--time", "10"], None),
    ],
)
def test_limits_of_all_partitions_are_kept_as_slurm_wants_them(limited, options, code):
    words = ["--partition", "four,eight", "--mem", "900M", *options]
    done = limited.dsrun("render-slurm", *words, "--", "true", check=False)
    assert (done.returncode, f"[{code}]" in done.stderr) == ((3, True) if code else (0, False)), done.stderr
    forced = limited.render("--force", *words, program=["true"])
    said = limited.run("sbatch", "--parsable", "--hold", input=forced, check=False)
    assert (said.returncode != 0) == bool(code), said.stderr


def test_typed_gpus_take_the_cores_of_nodes_that_have_them(limited):
    """Not those of the poorer node with eight others; SLURM gives them."""
    script = limited.render("--gpus-per-node", "a100:4", program=["true"])
    job = limited.sbatch(with_body(script, "true\n")).wait_for("COMPLETED")
    assert (job.fact("NumCPUs"), job.fact("NodeList")) == ("32", "node1")
    assert "--cpus-per-task=16\n" in limited.render("--gpus-per-node", "rtx:4", program=["true"])


def test_program_that_the_login_node_cannot_execute_fails_as_told(limited):
    file = limited.home / "plain"
    file.write_text("echo\n")
    file.chmod(0o755)
    options = ["--gpus-per-node", "0", "--no-requeue", "--mem", "900M", "--time", "10"]
    done = limited.dsrun("render-slurm", *options, "--", "./plain", check=False)
    assert (done.returncode, "[slurm_not_executable]" in done.stderr) == (3, True)
    limited.sbatch(limited.render("--force", *options, program=["./plain"])).wait_for("FAILED")

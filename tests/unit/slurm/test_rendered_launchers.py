"""Lines of other launchers behind `dsrun render-slurm --` and `render-k8s --`: as `dsrun launch` reads them."""

from __future__ import annotations

import shlex

import pytest

from dsrun.cli.kubernetes.manifest import KUBERNETES
from dsrun.cli.options import declared_in
from dsrun.cli.render.rendered_job import find_job, given_options
from dsrun.cli.slurm.script import SLURM
from dsrun.errors import UsageError
from dsrun.kubernetes.options import KubernetesSpec
from dsrun.kubernetes.spec import make_spec as make_kubernetes_spec
from dsrun.launch.context import LocalWorkers, TrainingJob
from dsrun.launch.environment import run_arguments
from dsrun.launch.program import any_program
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.spec import make_spec

RENDER = {
    "slurm": (declared_in("slurm/render.toml"), SlurmSpec, make_spec, SLURM),
    "k8s": (declared_in("kubernetes/render.toml"), KubernetesSpec, make_kubernetes_spec, KUBERNETES),
}


def rendered(line: str, folder, kind: str = "slurm"):
    """The program of `dsrun render-… LINE`, and the values of its spec that are not the default's."""
    command, spec_class, make, rendering = RENDER[kind]
    with command.make_context(f"render-{kind}", shlex.split(line)) as context:
        job = find_job(context.obj, None, folder, rendering)
        spec = make(*given_options(job, spec_class, context.params, folder, rendering))
    return job, {name: value for name, value in vars(spec).items() if value != getattr(spec_class, name)}


@pytest.mark.parametrize("kind", RENDER)
@pytest.mark.parametrize(
    ("line", "program", "options"),
    [
        ("-- torchrun x.py --lr 1", "python x.py --lr 1", {}),
        (
            "-- torchrun --nnodes=2 --nproc-per-node=4 --max-restarts=3 x.py",
            "python x.py",
            {"nodes": 2, "gpus_per_node": 4, "max_restarts": 3},
        ),
        ("-- python3 -m torch.distributed.run --nproc_per_node gpu -m a.b", "python3 -m a.b", {}),
        ("--gpus-per-node 0 -- torchrun --nproc-per-node=2 x.py", "python x.py", {"gpus_per_node": 0, "nproc": 2}),
        ("--nproc 2 --nodes 2 -- torchrun --nnodes 2 --nproc-per-node=2 x.py", "python x.py", {"nodes": 2, "nproc": 2}),
        ("-- torchrun --no-python ./x --y", "./x --y", {}),
        ("-- python -m torch.distributed.launch x.py", "python x.py --local-rank=${local_rank}", {}),
    ],
)
def test_launcher_line_is_translated(tmp_path, kind, line, program, options):
    """Its workers of a node are that many GPUs, where nobody says how many GPUs or workers a node has."""
    job, found = rendered(line, tmp_path, kind)
    assert (job.words, job.program) == (tuple(program.split()), any_program(program.split()))
    assert {name: str(value) for name, value in found.items()} == {name: str(value) for name, value in options.items()}


def test_hostfile_that_nobody_named_is_no_part_of_a_job(tmp_path, monkeypatch):
    """deepspeed reads /job/hostfile without being told; the machines of a job are the scheduler's."""
    (tmp_path / "hostfile").write_text("gpu1 slots=8\n")
    answer = {"script": "x.py", "arguments": [], "module": False, "no_python": False, "given": {"num_nodes": 2}}
    monkeypatch.setattr("dsrun.launch.launcher_line._read", lambda *_: answer)
    monkeypatch.setattr("dsrun.launch.launcher_line._python_of", lambda _: "python")
    monkeypatch.setattr("dsrun.launch.launcher_line.launcher_line.__defaults__", (tmp_path / "hostfile",))
    assert rendered("-- deepspeed x.py", tmp_path)[1] == {"nodes": 2}
    answer["given"] = {"hostfile": str(tmp_path / "hostfile")}
    with pytest.raises(UsageError, match="--hostfile"):
        rendered("-- deepspeed x.py", tmp_path)


def test_run_file_is_weaker_than_the_launcher(tmp_path):
    (tmp_path / "run.yaml").write_text("slurm: {nodes: 3, gpus_per_node: 4, partition: a}\nlaunch: {max_restarts: 5}\n")
    _, found = rendered("--partition b -- torchrun --nnodes 2 --nproc-per-node 2 --max-restarts 1 x.py", tmp_path)
    assert found == {"nodes": 2, "gpus_per_node": "4", "nproc": 2, "max_restarts": 1, "partition": "b"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("--nodes 3 -- torchrun --nnodes 2 x.py", "--nodes 3 for dsrun render-slurm, but 2 for torchrun"),
        ("--max-restarts 0 -- torchrun --max-restarts 2 x.py", "--max-restarts 0"),
        ("--nproc 8 -- torchrun --nproc-per-node 2 x.py", "--nproc 8"),
        ("-- torchrun --nnodes 1:4 x.py", "1:4"),
        ("-- torchrun --nproc-per-node cpu x.py", "cpu"),
        ("-- torchrun --rdzv-backend etcd x.py", "etcd"),
        ("-- torchrun --foo x.py", "--foo"),
        ("-- torchrun --nnodes 2", "no program"),
        ("-- torchrun --no-python srun x", "one worker per GPU"),
        ("-- nice torchrun x.py", "one worker per GPU"),
    ],
)
def test_launcher_line_that_no_job_can_follow(tmp_path, line, why):
    with pytest.raises(UsageError, match=why):
        rendered(line, tmp_path)


def test_what_is_left_out_of_a_line_is_told(tmp_path, capsys):
    """The rendezvous is the job's own, and torchrun's own logs are the supervisor's."""
    rendered("--time 5 -- torchrun --nnodes 2 --node-rank 0 --rdzv-endpoint h:1 --log-dir l --tee 3 x.py", tmp_path)
    said = capsys.readouterr().err
    assert "dsrun render-slurm … --nodes=2 -- python x.py" in said
    assert said.rstrip().endswith("left out: --log-dir, --tee, --node-rank, --master-addr, --master-port")


def test_rank_of_a_worker_reaches_its_flag():
    """torch.distributed.run fills it in, whether a supervisor starts that or a job's script; other dollars stay."""
    words = ["x.py", "--local_rank=${local_rank}", "a$b", "${local_rank}"]
    same = ["x.py", "--local_rank=${local_rank}", "a$$b", "$${local_rank}"]
    assert list(any_program(["python", *words]).argv[1:]) == same
    job = TrainingJob(topology=LocalWorkers(2, "cpu", 1), run=None, program=words, env={})
    assert run_arguments(job, attempt=1, port=1)[-4:] == same

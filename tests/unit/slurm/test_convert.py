"""`check-slurm --convert`: the program of a converted job gets what it got, and what is not converted is refused.

Both scripts run under the real bash, with stand-ins for srun, the launchers and Python.
"""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from dsrun.cli.options import declared_in
from dsrun.cli.render.rendered_job import from_flags
from dsrun.errors import UsageError
from dsrun.launch.program import any_program
from dsrun.slurm.lint.convert import convert
from dsrun.slurm.lint.read_script import read_script
from dsrun.slurm.render.job_script import render_script
from dsrun.slurm.render.options import SlurmSpec
from dsrun.slurm.render.site import ClusterSite
from dsrun.slurm.render.spec import make_spec

render_command = declared_in("slurm/render.toml")

STAND_IN = Path(__file__).with_name("launch_stand_in.py")
TWO = "--nodes=2 --gpus-per-node=2"
PER_TASK = "--nodes=2 --ntasks-per-node=2 --gpus-per-node=2 --cpus-per-task=3"
HEAD = "head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\n"
RUN = "srun torchrun --nnodes 2 --nproc_per_node 2 --rdzv_backend c10d --rdzv_endpoint $head:29500 "
RANKS = "RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS"
# Directives, and the lines of the script.
SAME = {
    "plain": ("--gpus-per-node=1", "python train.py --lr 1"),
    "no-gpus": ("--cpus-per-task=4", "python train.py"),
    "braces-in-quotes": ("--gpus=1", "python train.py --x '${a.b}' '$HOME' \"\\$5\""),
    "odd-words": ("--gpus=1", "python train.py 'it is' \"a'b\" c\\ d \"e\\f\" '' 'ä*?' --x='{1,2}'"),
    "backslash-lines": ("--gpus=1", "python train.py \\\n  --a 1 \\\n  --b 2"),
    "array": ("--gpus=1 --array=0-3", 'python train.py --seed "$SLURM_ARRAY_TASK_ID"'),
    "job-id": ("--gpus=1", "python train.py --out runs/$SLURM_JOB_ID/${SLURM_ARRAY_TASK_ID}"),
    "variable": ("--gpus=1", 'OUT=/data/x\npython train.py --out "$OUT/y" --log=$OUT'),
    "variable-of-variables": ("--gpus=1", "A='x y'\nB=\"$A/z\"\nC=unused\npython train.py \"$B\" $A"),
    "default-value": ("--gpus=1", 'python train.py "${NOT_SET:-none}" "${FROM_LOGIN%b}"'),
    "arithmetic": ("--gpus=1", "N=3\npython train.py --steps $((N * 100 + SLURM_ARRAY_TASK_ID))"),
    "glob-and-braces": ("--gpus=1", "python train.py *.none {a,b} x{1..3}"),
    "exports": ("--gpus=1", "export NCCL_DEBUG=INFO TWO='a b'\nexport THREE=\"c\"\npython train.py"),
    "export-of-variable": ("--gpus=1", 'export HF_HOME=$FROM_LOGIN/hf\nexport Y="$HF_HOME/y"\npython train.py'),
    "export-by-name": ("--gpus=1", "A=1\nexport A\npython train.py"),
    "export-path": ("--gpus=1", "export LIBS=/x:$LIBS\npython train.py --x 1"),
    "environment-before": ("--gpus=1", "A=1 B='x y' python train.py"),
    "environment-with-variable": ("--gpus=1", "A=$FROM_LOGIN python train.py"),
    "variable-that-grows": ("--gpus=1", 'A="--lr 1"\nA="$A --steps 2"\nB="--out $A"\npython train.py $A $B'),
    "variable-of-one-that-changes": ("--gpus=1", 'A=1\nB="--out $A"\nA=2\npython train.py $A $B'),
    "path-without-export": ("--gpus=1", "PYTHONPATH=/x:$PYTHONPATH\nB=2 python train.py"),
    "conditions-of-silent-lines": ("--gpus=1", "which bash || exit 1\necho a | cat\ndate && python train.py"),
    "python-options": ("--gpus=1", "python -u train.py --x 1"),
    "python-module": ("--gpus=1", "python -m my.train --x 1"),
    "other-python": ("--gpus=1", "ENV/bin/python train.py"),
    "silent-lines": ("--gpus=1", "set -euo pipefail\necho $(date)\nnvidia-smi\npython train.py\necho done\nexit $?"),
    "background": ("--gpus=1", "python train.py &\nwait"),
    "setup-file": ("--gpus=1", "source SETUP\npython train.py"),
    "venv": ("--gpus=1", "source ENV/bin/activate\nexport A=1\npython train.py"),
    "conda": ("--gpus=1", 'eval "$(conda shell.bash hook)"\nconda activate here\npython train.py'),
    "modules": ("--gpus=1", "module load cuda/13 nccl\nml list\npython train.py".replace("ml list\n", "module list\n")),
    "submit-folder": ("--gpus=1", 'cd "$SLURM_SUBMIT_DIR"\npython train.py'),
    "torchrun": (TWO, HEAD + RUN + "train.py --lr 1"),
    "torchrun-variables": (TWO, HEAD + "OUT=$SLURM_JOB_NAME\n" + RUN + 'train.py --lr "1 $OUT"'),
    "torchrun-module": (TWO, HEAD + RUN + "-m my.train --lr 1"),
    "torchrun-of-environment": (TWO, HEAD + RUN.replace("torchrun", "ENV/bin/torchrun") + "train.py '$x'"),
    "torch-distributed-run": (TWO, HEAD + RUN.replace("torchrun", "python -m torch.distributed.run") + "train.py"),
    "launcher-in-variable": (TWO, HEAD + f'L="{RUN.removeprefix("srun ")}"\nsrun $L train.py --lr 1'),
    "fewer-workers": ("--gres=gpu:a100:4", "srun torchrun --standalone --nproc_per_node=2 train.py"),
    "one-worker": ("--gpus-per-node=4", "torchrun --standalone train.py"),
    "all-gpus": ("--gpus-per-node=4", "torchrun --standalone --nproc_per_node=gpu train.py"),
    "accelerate": (
        TWO, HEAD + "srun bash -c 'accelerate launch --num_machines 2 --num_processes 4 --machine_rank $SLURM_NODEID "
        "--mixed_precision bf16 --num_cpu_threads_per_process 3 --main_process_port 1 train.py --x 1'",
    ),
    "deepspeed": ("--gpus=2", "deepspeed --num_gpus 2 train.py --deepspeed 'a b.json'"),
    "deepspeed-no-local-rank": ("--gpus=2", "deepspeed --num_gpus=2 --no_local_rank train.py --deepspeed ds.json"),
    "ranks-of-srun": (PER_TASK, f"srun bash -c '{RANKS} exec python train.py --x 1'"),
    "one-task-of-srun": ("--gpus-per-node=2", "srun --label --kill-on-bad-exit=1 python train.py"),
    "threads-of-task": (
        "--gpus=1 --cpus-per-task=4", "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun python train.py",
    ),
    "definition-of-module": ("--gpus=1", "source ENV/init/bash\nmodule load cuda\npython train.py"),
    "signal": ("--gpus=1 --time=1:00:00 --signal=B:USR1@120 --job-name='my job'", "python train.py $SLURM_JOB_NAME"),
}  # fmt: skip


class Machine:
    """Stand-ins, and a folder in which scripts run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in (root / "tools", root / "env" / "bin"):
            folder.mkdir(parents=True)
            for name in ("srun", "torchrun", "accelerate", "deepspeed", "python"):
                self.put(folder / name, f'exec {sys.executable} -IS {STAND_IN} "$0" "$@"')
        self.put(root / "tools" / "scontrol", "echo first-node")
        self.put(root / "tools" / "conda", "echo 'conda() { export CONDA_DEFAULT_ENV=$2; }'")
        for name in ("module", "scancel", "nvidia-smi"):
            self.put(root / "tools" / name, ":")
        (root / "env" / "init").mkdir()
        (root / "env" / "init" / "bash").touch()
        (root / "setup.sh").write_text("export FROM_SETUP='a b'\n")
        (root / "env" / "bin" / "activate").write_text("export VIRTUAL_ENV=there\n")

    def put(self, path: Path, body: str) -> None:
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def programs(self, text: str, name: str) -> list[dict]:
        """What the Python programs of a job get, as the scheduler would start it."""
        script, record = read_script(text), self.root / name
        nodes = script.number("nodes") or 1
        named = script.get("job-name")
        variables = {
            "PATH": f"{self.root}/tools:/usr/bin:/bin", "HOME": str(self.root), "RECORD": str(record),
            "TMPDIR": str(self.root), "SLURM_JOB_ID": "12", "SLURM_JOB_NODELIST": "first-node,second-node",
            "SLURM_JOB_NUM_NODES": f"{nodes}", "SLURM_NNODES": f"{nodes}", "SLURM_SUBMIT_DIR": str(self.root),
            "SLURM_NTASKS_PER_NODE": str(script.number("ntasks-per-node") or 1), "GPUS": str(script.gpus),
            "SLURM_JOB_NAME": named.value if named else "job.sh", "FROM_LOGIN": "a b", "LIBS": "/y", "PYTHONPATH": "/y",
            "LC_ALL": "C.UTF-8",
            **({"SLURM_CPUS_PER_TASK": str(count)} if (count := script.number("cpus-per-task")) else {}),
            **({"SLURM_ARRAY_TASK_ID": "3", "SLURM_ARRAY_JOB_ID": "12"} if script.get("array") else {}),
        }  # fmt: skip
        done = subprocess.run(
            ["bash", "-c", text], cwd=self.root, env=variables, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        found = [json.loads(line) for line in record.read_text().splitlines()]
        return sorted(found, key=lambda each: int(each["env"].get("RANK", 0)))


def rendered(text: str, machine: Machine) -> str:
    """The script of `dsrun render-slurm` for a script's job."""
    args = convert(read_script(text), "job.sh")
    with render_command.make_context("render-slurm", list(args)) as context:
        spec = make_spec(from_flags(SlurmSpec, context.params))
    python = str(machine.root / "tools" / "python")
    return render_script(spec, any_program(args[args.index("--") + 1 :]), ClusterSite(python=python, own_python=python))


@pytest.mark.parametrize("case", SAME)
def test_converted_program_gets_the_same(case, tmp_path):
    """Arguments, the script's variables, the number of workers, torch's ranks, and the CPUs of each node."""
    machine = Machine(tmp_path)
    directives, lines = SAME[case]
    lines = lines.replace("ENV", str(tmp_path / "env")).replace("SETUP", str(tmp_path / "setup.sh"))
    text = "".join(f"#SBATCH {each}\n" for each in re.findall(r"--(?:[^\s']|'[^']*')+", directives))
    text = f"#!/bin/bash\n{text}{lines}\n"
    before = machine.programs(text, "before")
    after = machine.programs(rendered(text, machine), "after")
    names = set(re.findall(r"\b([A-Z]\w*)=", lines)) - {"L"} | {"FROM_SETUP", "VIRTUAL_ENV", "CONDA_DEFAULT_ENV"}
    names |= {"ACCELERATE_MIXED_PRECISION", "SLURM_JOB_NAME", "FROM_LOGIN"}
    names |= {"RANK", "LOCAL_RANK", "WORLD_SIZE"} if "RANK" in before[0]["env"] else set()
    names |= {"OMP_NUM_THREADS"} if "num_cpu_threads" in lines else set()
    assert len(before) == len(after) > 0
    for was, now in zip(before, after, strict=True):
        assert now["argv"] == was["argv"]
        assert {name: now["env"].get(name) for name in names} == {name: was["env"].get(name) for name in names}
        if "/env/" in was["python"]:
            assert now["python"] == was["python"]
    tasks = int(before[0]["env"]["SLURM_NTASKS_PER_NODE"])
    if cpus := before[0]["env"].get("SLURM_CPUS_PER_TASK"):
        assert int(after[0]["env"]["SLURM_CPUS_PER_TASK"]) == int(cpus) * tasks


def test_enough_scripts_are_compared():
    assert len(SAME) >= 40


GPU = "#SBATCH --gpus-per-node=1\n"
REFUSED = [
    ("python train.py --model=$1", "3: $1 has"),
    ('python train.py "$@"', "3: $@ has"),
    ("python train.py $(date)", "3: $( has"),
    ("python train.py $HOSTNAME", "3: $HOSTNAME has"),
    ("A=$(mktemp)\npython train.py $A", "3: A is not converted"),
    ("A=$(hostname)\npython train.py $A", "3: $( has"),
    ("export MASTER_PORT=1\npython train.py $MASTER_PORT", "3: $MASTER_PORT has"),
    ("a=(1 2)\npython train.py ${a[1]}", "4: ${ has"),
    ("accelerate launch --config_file x.yaml train.py", "3: accelerate launch --config_file is not"),
    ("accelerate launch --num_processes 1 --use_fsdp train.py", "3: accelerate launch --use_fsdp is not"),
    ("accelerate launch --use_deepspeed --zero_stage 3 train.py", "3: accelerate launch --use_deepspeed is not"),
    ("torchrun --log_dir x train.py", "3: torchrun --log_dir is not"),
    ("deepspeed --include a:0 train.py", "3: deepspeed --include is not"),
    ("python -m torch.distributed.launch --nproc_per_node 1 train.py", "3: torch.distributed.launch passes"),
    ("source /opt/conda/bin/activate train\npython train.py", "3: source /opt/conda/bin/activate train is not"),
    ("export A=1\nmodule load cuda\npython train.py", "4: module load cuda is not"),
    ("module purge\npython train.py", "3: module purge is not"),
    ("torchrun --nproc_per_node 1 train.py '$$'", "3: '$$': torchrun replaces"),
    ("torchrun --nproc_per_node 1 train.py --r='${local_rank}'", "3: --r='${local_rank}': torchrun replaces"),
    ("cd /work\npython train.py", "3: cd /work is not"),
    ("export HF_TOKEN=hf_0123456789abcdef\npython train.py", "3: export HF_TOKEN is not"),
    ("if true; then\npython train.py\nfi", "3: if … is not"),
    ("for x in 1 2; do\npython train.py $x\ndone", "3: for … is not"),
    ("python train.py >log 2>&1", "3: the output is redirected"),
    ("python train.py | tee log", "3: a launch before |"),
    ("cat rows.json | python train.py", "3: cat rows.json is not"),
    ("grep -q x file && echo y && python train.py", "3: grep -q x file is not"),
    ("nvidia-smi || python train.py", "3: nvidia-smi is not"),
    ("which conda || export A=1\npython train.py", "3: which conda is not"),
    ("CMD='python train.py'\nCMD=\"$CMD --lr 1\"\n$CMD", "5: $CMD … is not"),
    ("IFS=,\nX=a,b\npython train.py $X", "3: IFS is not"),
    ("python train.py\nrm -r x", "4: rm -r x is not"),
    ("trap 'touch x' USR1\npython train.py", "3: trap touch x USR1 is not"),
    ("numactl -N 0 python train.py", "3: numactl … is not"),
    ("srun --export=ALL,A=1 python train.py", "3: srun --export=ALL,A=1 is not"),
    ("srun --gpu-bind=none python train.py", "3: srun --gpu-bind=none is not"),
    ("echo x >file\npython train.py", "3: echo x >file is not"),
    ("srun bash -c \"A=$B; python train.py\"", "3: of bash -c one command"),
    ("srun apptainer exec x.sif python train.py", "3: apptainer: containers"),
]  # fmt: skip
DIRECTIVES = [
    ("--ntasks=5 --gpus-per-task=A100:1", "srun python train.py", "job.sh:3: the number of nodes"),
    ("--nodes=1 --ntasks=4 --gpus-per-task=1", "srun python train.py", "--gpus-per-task is not"),
    ("--nodes=1 --ntasks=4 --gpus-per-node=4", "srun python train.py", "a program that finds its rank"),
    ("--nodes=1-2 --gpus-per-node=4", "torchrun train.py", "job.sh:2: the number of nodes"),
    ("--nodes=2 --gpus-per-node=4", "srun torchrun --nnodes=4 train.py", "it is for 4 nodes"),
    ("--gpus-per-node=4", "torchrun --nproc_per_node=8 train.py", "8 workers are not"),
    ("--gpus-per-node=4 --gres=gpu:4", "torchrun train.py", "GPUs are asked for twice"),
    ("--exclusive", "torchrun train.py", "whether the nodes have GPUs is not known"),
    ("--gpus-per-node=4 --export=NONE", "torchrun train.py", "job.sh:2: --export is not"),
    ("--gpus-per-node=4 --signal=TERM@60", "torchrun train.py", "job.sh:2: --signal is not"),
    ("--nodes=2 --gpus-per-node=4", "torchrun --nproc_per_node=4 train.py", "the first of 2 nodes"),
    ("--gpus-per-node=4 --chdir=/work", "cd $SLURM_SUBMIT_DIR\npython train.py", "cd $SLURM_SUBMIT_DIR is not"),
    ("--gpus-per-node=4", "srun --gpus-per-task=1 python train.py", "srun --gpus-per-task=1 is not"),
    ("--gpus-per-node=4", "export H=$(hostname)\npython train.py", "job.sh:3: $( has"),
    ("--gpus-per-node=4", "export PORT=1\nml purge\npython train.py", "ml purge is not"),
    ("--gpus-per-node=4", "python train.py <<E\nx\nE", "a here-document"),
    ("--gres=shard:4", "python train.py", "job.sh:2: a share of a GPU"),
    ("--gpus=1\n#SBATCH hetjob\n#SBATCH --gpus=2", "python train.py", "job.sh:3: a heterogeneous job"),
    ("--gpus-per-node=4 --speed=9", "torchrun train.py", "job.sh:2: --speed is not"),
]


@pytest.mark.parametrize(("lines", "message"), REFUSED, ids=[each[1] for each in REFUSED])
def test_line_that_is_not_converted_is_refused(lines, message):
    with pytest.raises(UsageError, match=re.escape(f"job.sh:{message}")) as error:
        convert(read_script(f"#!/bin/bash\n{GPU}{lines}\n"), "job.sh")
    assert error.value.fix


@pytest.mark.parametrize(("directives", "line", "message"), DIRECTIVES, ids=[each[2] for each in DIRECTIVES])
def test_directive_that_is_not_converted_is_refused(directives, line, message):
    with pytest.raises(UsageError, match=re.escape(message)) as error:
        convert(read_script(f"#!/bin/bash\n#SBATCH {directives}\n{line}\n"), "job.sh")
    assert error.value.fix


def test_job_has_one_launch():
    for lines, count in (("python a.py\npython b.py", "2 launches were"), ("true", "nothing that trains was")):
        with pytest.raises(UsageError, match=f"{count} found"):
            convert(read_script(f"#!/bin/bash\n{GPU}{lines}\n"), "job.sh")


def test_settings_in_a_file_of_accelerate_are_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    text = f"#!/bin/bash\n{GPU}accelerate launch --num_processes 1 train.py\n"
    assert convert(read_script(text), "job.sh")[-2:] == ["python", "train.py"]
    (tmp_path / "accelerate").mkdir()
    (tmp_path / "accelerate" / "default_config.yaml").touch()
    with pytest.raises(UsageError, match=r"job.sh:3: Accelerate also reads .*default_config.yaml"):
        convert(read_script(text), "job.sh")


def test_launcher_of_each_task_is_one_of_each_node():
    text = (Path(__file__).parents[2] / "data" / "sbatch" / "launcher-per-task.sh").read_text()
    assert shlex.join(convert(read_script(text), "job.sh")) == (
        "--job-name t --time 10:00:00 --gres gpu:a100:4 --nodes 2 --cpus-per-task 4 -- python train.py"
    )


def test_converted_resources():
    """Types of GPUs and the CPUs of all tasks stay."""
    text = "#!/bin/bash\n#SBATCH -N 2 --gpus=A100:8 --ntasks-per-node=4 -c 6\nsrun torchrun --nproc_per_node=4 t.py\n"
    args = convert(read_script(text), "job.sh")
    assert shlex.join(args) == ("--job-name job.sh --nodes 2 --gpus-per-node A100:4 --cpus-per-task 24 -- python t.py")

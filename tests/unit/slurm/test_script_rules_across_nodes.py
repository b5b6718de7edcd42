"""Rules of `check-slurm` about what reaches each node of a job: a script that has the fault, and one without it."""

import pytest

from dsrun.slurm.lint.script_check import check_script
from tests.unit.slurm.test_script_rules import HEAD, MASTER, ONE, OWN, RANKS, RUN, STATIC, TWO, USR1, codes

EACH = "for n in $(scontrol show hostnames); do\n"
HOSTS = f'{EACH}echo "$n slots=4" >> hostfile\ndone\ndeepspeed --hostfile hostfile t.py'
ACCELERATE = "accelerate launch --num_machines=2 --num_processes=8 --main_process_ip=$h --main_process_port=29500"
READ = "while read -r n; do\nssh {} mkdir -p /local/a\ndone < hosts"
DIGITS = "${SLURM_JOB_ID: -4}"
LIST = "nodes=($(scontrol show hostnames))\n"
COPY = f"{LIST}all=($nodes)\n"
PLAIN = "torchrun --standalone --nproc_per_node=4 t.py"
ANEW = "torchrun --standalone --nproc_per_node=4 run_mlm.py --output_dir a"
HALF = "CUDA_VISIBLE_DEVICES=$a torchrun --nproc_per_node=2"
FIRST, SECOND = (f"srun -N1 -n1 -w {node} {STATIC} --node_rank={rank} t.py" for rank, node in enumerate("ab"))
# Code, directives, the lines with the fault, and lines (and directives) without it.
FAULTS = [
    ("batch_shell_only", TWO, "bash run_train.sh a.yaml", "srun bash run_train.sh a.yaml"),
    ("batch_shell_only", TWO, "./train.sh", "scontrol show hostnames > hosts\n./train.sh --hostfile hosts"),
    ("batch_shell_only", TWO, "bash run_train.sh", "bash launch_slurm.sh"),
    ("batch_shell_only", TWO, "composer -n 4 t.py", "srun composer -n 4 t.py"),
    ("batch_shell_only", TWO, "singularity exec --nv a.sif bash train.sh",
     "srun singularity exec --nv a.sif bash train.sh"),
    ("batch_shell_only", TWO, "uv run torchrun --nproc_per_node=4 t.py", f"{HEAD}srun uv run {RUN}"),
    ("batch_shell_only", TWO, "poetry run t.py", "python submit_all.py"),
    ("loop_waits", TWO, f"{HEAD}{FIRST}\n{SECOND}", f"{HEAD}{FIRST} &\n{SECOND} &\nwait"),
    ("loop_waits", TWO, f"{EACH}srun -N1 -n1 -w $n bash node.sh --rank $((i++))\ndone",
     f"{EACH}srun -N1 -n1 -w $n bash node.sh --rank $((i++)) &\ndone\nwait"),
    ("loop_waits", TWO, f"{EACH}NODE_RANK=$((i++)) srun -N1 -n1 -w $n python t.py\ndone",
     f"{EACH}srun -N1 -n1 -w $n mkdir -p /tmp/a\ndone"),
    ("loop_waits", TWO, "ssh a python t.py\nssh b python t.py", "ssh a python t.py &\nssh b python t.py &\nwait"),
    ("loop_waits", TWO, "srun -N1 -n1 -w a ray start --head --block\npython t.py",
     "srun -N1 -n1 -w a ray start --head --block &\npython t.py"),
    ("step_everywhere", TWO, "srun -w a bash head.sh &\nwait", "srun -w a -n1 bash head.sh &\nwait"),
    ("step_everywhere", TWO, f"{EACH}srun --nodelist=$n bash a.sh &\ndone\nwait", "srun -w $SLURM_JOB_NODELIST a.sh"),
    ("step_has_all_tasks", TWO, "srun -N1 -w a bash head.sh &\nwait", "srun -N1 -n1 -w a bash head.sh &\nwait"),
    ("hostfile_grows", TWO, HOSTS, f": > hostfile\n{HOSTS}"),
    ("hostfile_grows", TWO, HOSTS, HOSTS.replace("hostfile", "hostfile.$SLURM_JOB_ID")),
    ("address_not_one", TWO, "ssh $SLURM_NODELIST hostname", "srun -w $SLURM_NODELIST hostname"),
    ("address_not_one", TWO, "for n in $SLURM_JOB_NODELIST; do ssh $n a & done\nwait", f"{EACH}ssh $n a & done\nwait"),
    ("address_not_one", TWO, "nodes=($SLURM_JOB_NODELIST)", "nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))"),
    ("address_not_one", TWO, "srun python t.py --url tcp://$SLURM_NODELIST:23456", ("-N1", "ssh $SLURM_NODELIST a")),
    ("variable_undefined", RANKS, f"export MASTER_ADDR=$MASTER_ADDR\n{OWN}",
     f"export MASTER_ADDR=$(hostname)\nexport MASTER_ADDR=$MASTER_ADDR\n{OWN}"),
    ("variable_undefined", TWO, f"{HEAD}srun {RUN}".replace("$h:", "$H:").replace("h=", "Head=").replace("$H", "$HEAD"),
     f"{HEAD}srun {RUN}"),
    ("slurm_variable_unset", TWO, f"{HEAD}srun {RUN}".replace("nnodes=2", "nnodes=$SLURM_NNODE"), f"{HEAD}srun {RUN}"),
    ("slurm_variable_unset", RANKS, MASTER + OWN.replace("$SLURM_PROCID", "$slurm_procid"), MASTER + OWN),
    ("slurm_variable_unset", ONE, "mkdir $SLRUM_JOB_ID", "mkdir $SLURM_JOB_ID $SLURM_TMPDIR $SLURM_SITE_FOLDER"),
    ("slurm_variable_unset", TWO, "for n in $L; do ssh $n \"python t.py --rank \\$SLURM_NODEID\" & done\nwait",
     "for n in $L; do ssh $n \"python t.py --job $SLURM_JOB_ID\" & done\nwait"),
    ("slurm_variable_unset", TWO, "ssh $n 'python t.py --addr $MASTER_ADDR' &\nwait",
     "ssh $n 'MASTER_ADDR=a; python t.py --addr $MASTER_ADDR' &\nwait"),
    ("signal_without_trap", USR1, "srun python t.py &\nwait\ntrap 'scontrol requeue $SLURM_JOB_ID' USR1",
     "trap 'scontrol requeue $SLURM_JOB_ID' USR1\nsrun python t.py &\nwait\nwait"),
    ("trap_waits", USR1, "trap 'touch a' USR1\nf() {\nsrun python t.py\n}\nf",
     "trap 'touch a' USR1\nf() {\nsrun python t.py &\nwait\n}\nf"),
    ("one_node_filled", TWO, f"{HEAD}tar xf a.tar -C $SLURM_TMPDIR\nsrun {RUN} --data $SLURM_TMPDIR/a",
     f"{HEAD}srun -n2 tar xf a.tar -C $SLURM_TMPDIR\nsrun {RUN} --data $SLURM_TMPDIR/a"),
    ("one_node_filled", TWO, f"{HEAD}D=/local/$USER\ncp -r data $D\nsrun {RUN} --data $D",
     f"{HEAD}D=/lustre/$USER\ncp -r data $D\nsrun {RUN} --data $D"),
    ("one_node_filled", TWO, f"{HEAD}virtualenv $TMPDIR/e\nsource $TMPDIR/e/bin/activate\nsrun {RUN}",
     (ONE, "virtualenv $TMPDIR/e\nsource $TMPDIR/e/bin/activate\nsrun python t.py")),
    ("one_node_filled", TWO, "cat > /tmp/w.sh <<'E'\npython t.py\nE\nsrun bash /tmp/w.sh",
     "cat > w.sh <<'E'\npython t.py\nE\nsrun bash w.sh"),
    ("one_node_filled", TWO, f"{HEAD}cp a.h5 /tmp/a.h5\nsrun {RUN} --data /tmp/a.h5",
     f"{HEAD}sbcast a.h5 /tmp/a.h5\ncp /tmp/a.h5 /tmp/b.h5\nsrun {RUN} --data /tmp/a.h5"),
    ("rank_in_batch_shell", TWO, f'{HEAD}W=$PWD/w_$SLURM_JOB_ID.sh\ncat > "$W" <<E\n{STATIC} --node_rank=$SLURM_NODEID '
     't.py\nE\nsrun "$W"',
     f"{HEAD}W=$PWD/w_$SLURM_JOB_ID.sh\ncat > \"$W\" <<'E'\n{STATIC} --node_rank=$SLURM_NODEID t.py\nE\nsrun \"$W\""),
    ("tasks_exceed_gpus", "--gres=gpu:4 --ntasks=8", "srun python t.py",
     ("--gres=gpu:4 --ntasks=4", "srun python t.py")),
    ("tasks_exceed_gpus", RANKS, "mpirun -np 16 python t.py", "mpirun -np 8 python t.py"),
    ("tasks_below_gpus", "-N2 --gpus=8 --ntasks-per-node=2", "srun python t.py --dist-url env://",
     (RANKS, "srun python t.py --dist-url env://")),
    ("ranks_exceed_gpus", "-N4 --gpus=6", f"{HEAD}srun {RUN}".replace("nnodes=2", "nnodes=4"),
     (TWO, f"{HEAD}srun {RUN}")),
    ("gpus_not_a_number", "--gpus-per-node=a100:4", "export N=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))",
     (ONE, "export N=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))")),
    ("gpus_held", ONE, "python t.py\nsleep 6h", "sleep 30\npython t.py\nsleep 60"),
    ("slowed_down", ONE, "export CUDA_LAUNCH_BLOCKING=1\npython t.py", "export CUDA_LAUNCH_BLOCKING=0\npython t.py"),
    ("rank_missing", TWO, f"{HEAD}srun {STATIC} t.py", f"{HEAD}srun bash -c '{STATIC} --node_rank=$SLURM_NODEID t.py'"),
    ("rank_missing", TWO, f"{HEAD}srun {ACCELERATE} t.py", f"{HEAD}srun {ACCELERATE} --rdzv_backend c10d t.py"),
    ("requeued_for_ever", ONE, "python t.py\nscontrol requeue $SLURM_JOB_ID",
     "python t.py\n[ $? = 124 ] && scontrol requeue $SLURM_JOB_ID"),
    ("requeued_for_ever", ONE, "python t.py\nscontrol requeue $SLURM_JOB_ID",
     "python t.py\ntest -f done && exit 0\nscontrol requeue $SLURM_JOB_ID"),
    ("results_lost", ONE, "python t.py --output_dir $TMPDIR/a",
     "python t.py --output_dir $TMPDIR/a\ncp -r $TMPDIR/a $HOME"),
    ("port_taken", ONE, f"{HALF} a.py &\n{HALF} b.py &\nwait",
     f"{HALF} --standalone a.py &\n{HALF} --standalone b.py &\nwait"),
    ("port_taken", ONE, f"{HALF} a.py &\n{HALF} b.py &\nwait",
     f"{HALF} --master_port 29501 a.py &\n{HALF} --master_port 29502 b.py &\nwait"),
    ("one_gpu_for_all", ONE, "python a.py &\npython b.py &\nwait",
     "python a.py --gpu 0 &\npython b.py --gpu 1 &\nwait"),
    ("never_reached", ONE, "exec python t.py\ncp a b", "cp a b\nexec python t.py"),
    ("never_reached", ONE, "exit\npython t.py", "cd a || \\\nexit\npython t.py"),
    ("array_from_zero", "--array=0-9", "c=$(sed -n \"${SLURM_ARRAY_TASK_ID}p\" list)\npython t.py $c",
     ("--array=1-10", "c=$(sed -n \"${SLURM_ARRAY_TASK_ID}p\" list)\npython t.py $c")),
    ("cpus_few", f"{ONE} --cpus-per-task=2", "torchrun --standalone --nproc_per_node=4 t.py",
     (f"{ONE} --cpus-per-task=8", "torchrun --standalone --nproc_per_node=4 t.py")),
    ("port_invalid", ONE, "export MASTER_PORT=$RANDOM", "export MASTER_PORT=$((RANDOM + 10000))"),
    ("address_not_one", TWO, "export MASTER_ADDR=$(hostname -I)", "export MASTER_ADDR=$(hostname -I | cut -d' ' -f1)"),
    ("slurm_variable_unset", "--array=0-9", "python t.py $SLURM_ARRAY_TASKID", "python t.py $SLURM_ARRAY_TASK_ID"),
    ("no_master_addr", RANKS, "srun python t.py", "srun python t.py --devices 4 --strategy ddp"),
    ("no_master_addr", RANKS, "srun python t.py", MASTER + OWN),
    ("list_eaten", TWO, READ.format("$n"), READ.format("-n $n")),
    ("list_eaten", TWO, READ.format("$n"), READ.replace("/a", "/a </dev/null").format("$n")),
    ("list_eaten", TWO, READ.format("$n"), READ.replace("/a", "/a &").format("$n") + "\nwait"),
    ("list_eaten", TWO, READ.format("$n"), READ.replace("read", "read -u 3").replace("<", "3<").format("$n")),
    ("list_eaten", TWO, f"scontrol show hostnames | {READ.partition(' <')[0]}".format("-o A=no $n"),
     "while read n; do echo $n; done < hosts\nwhile true; do ssh $n mkdir a; done"),
    ("list_eaten", TWO, "while read n; do srun -N1 -n1 -w $n mkdir a; done < hosts",
     "while read n; do srun -N1 -n1 -w $n mkdir a & done < hosts\nwait"),
    ("array_first", TWO, f"{COPY}echo ${{all[@]}}", f"{COPY}head=${{all[0]}}"),
    ("array_first", TWO, f"{COPY}echo ${{all[@]}}", f"{LIST}all=(${{nodes[@]}})\necho ${{all[@]}} $nodes"),
    ("array_first", TWO, "mapfile -t nodes < hosts\nfor n in $nodes; do ssh $n a & done\nwait",
     "nodes=$(scontrol show hostnames)\nfor n in $nodes; do ssh $n a & done\nwait"),
    ("array_first", TWO, f"{LIST}all=( $nodes )\necho ${{#all[@]}}",
     "nodes=(\"$(cat hosts)\")\nall=($nodes)\necho ${#all[@]}"),
    ("devices_below_ranks", ONE, f"export CUDA_VISIBLE_DEVICES=0,1\n{PLAIN}", f"CUDA_VISIBLE_DEVICES=0,1,2,3 {PLAIN}"),
    ("devices_below_ranks", ONE, f"CUDA_VISIBLE_DEVICES=0 {PLAIN}",
     f"export CUDA_VISIBLE_DEVICES=0\npython a.py\nunset CUDA_VISIBLE_DEVICES\n{PLAIN}"),
    # SLURM sets it anew for a step.
    ("devices_below_ranks", ONE, f"srun env CUDA_VISIBLE_DEVICES=0,1 {PLAIN}",
     f"export CUDA_VISIBLE_DEVICES=0,1\nsrun {PLAIN}"),
    ("octal", ONE, f"export MASTER_PORT=$((10000 + {DIGITS}))", f"export MASTER_PORT=$((10000 + 10#{DIGITS}))"),
    ("octal", ONE, "P=$((10000 + $(echo -n $SLURM_JOB_ID | tail -c 4)))",
     "P=$(expr 10000 + $(echo -n $SLURM_JOB_ID | tail -c 4))"),
    ("octal", ONE, f"N=$(({DIGITS} % 8))", f"N=$((1{DIGITS} % 8))"),
    ("octal", ONE, PLAIN.replace("--standalone", f"--master_port $((20000 + {DIGITS}))"),
     PLAIN.replace("--standalone", "--master_port $((20000 + ${ID:-4}))")),
    ("starts_anew", f"{ONE} --requeue", f"{ANEW} --overwrite_output_dir", (ONE, f"{ANEW} --overwrite_output_dir")),
    ("starts_anew", USR1, f"trap 'sbatch a.sh' USR1\n{ANEW} --overwrite_output_dir &\nwait",
     f"trap 'sbatch a.sh' USR1\n{ANEW} --overwrite_output_dir --resume_from_checkpoint a &\nwait"),
    ("port_invalid", ONE, "export MASTER_PORT=$((60000 + RANDOM % 9999))",
     "export MASTER_PORT=$((50000 + RANDOM % 9999))"),
    ("port_invalid", ONE, f"export MASTER_PORT=$((60000 + 10#{DIGITS}))",
     f"export MASTER_PORT=$((50000 + 10#{DIGITS}))"),
    ("port_invalid", TWO, f"{HEAD}export P=$((60000 + $RANDOM % 9999))\nsrun {RUN}".replace("29500", "$P"),
     f"{HEAD}export P=$((30000 + $RANDOM))\nsrun {RUN}".replace("29500", "$P")),
    ("port_invalid", ONE, "export MASTER_PORT=$(shuf -i 60000-70000 -n 1)",
     "export MASTER_PORT=$(shuf -i 20000-65535 -n 1)"),
]  # fmt: skip


@pytest.mark.parametrize(("code", "directives", "wrong", "right"), FAULTS, ids=[each[0] for each in FAULTS])
def test_rule_tells_wrong_from_right(code, directives, wrong, right):
    assert code in codes(directives, wrong)
    directives, right = right if isinstance(right, tuple) else (directives, right)
    assert code not in codes(directives, right)


@pytest.mark.parametrize(
    ("directives", "lines", "code", "level"),
    [
        (RANKS, "srun python t.py", "no_master_addr", "warning"),
        (TWO, HOSTS, "hostfile_grows", "warning"),
        (f"{TWO} --requeue", HOSTS, "hostfile_grows", "error"),
        ("--mem=4G\n#SBATCh --gpus=2", "true", "directive_spelling", "error"),
        ("--mem=4G\n#SBTACH --job-name=a", "true", "directive_spelling", "warning"),
        ("--mem=4G\n# SBATCH --gpus=2", "true", "directive_spelling", "warning"),
        # The job without the directive cannot work.
        ("--gpus-per-node=4\n#sbatch --nodes=2", f"{HEAD}srun {RUN}", "directive_spelling", "error"),
        (TWO, READ.format("$n"), "list_eaten", "error"),
        (TWO, f"{COPY}echo ${{all[1]}}", "array_first", "error"),
        (ONE, f"{COPY}echo ${{all[1]}}", "array_first", "warning"),
        (ONE, f"CUDA_VISIBLE_DEVICES=0 {PLAIN}", "devices_below_ranks", "error"),
        (ONE, "export MASTER_PORT=$((60000 + RANDOM % 9999))", "port_invalid", "warning"),
        (ONE, "export MASTER_PORT=$((70000 + RANDOM % 9999))", "port_invalid", "error"),
        (RANKS, "srun python a/run_clm.py", "no_master_addr", "error"),
        (ONE, "conda activate a", "conda_not_initialised", "warning"),
        (ONE, "set -e\nconda activate a", "conda_not_initialised", "error"),
        (ONE, "set -e\nconda activate a || true", "conda_not_initialised", "warning"),
        (ONE, f'cd "$(dirname "$0")"\ncd /a\n{PLAIN}', "script_path", "warning"),
        (ONE, f'cd "$(dirname "$0")"\n{PLAIN.replace("t.py", "/a/t.py")}', "script_path", "warning"),
    ],
)
def test_level_says_what_becomes_of_the_job(directives, lines, code, level):
    found = check_script(f"#!/bin/bash\n#SBATCH --time=1:0:0\n#SBATCH {directives}\n{lines}\n", "job.sh")
    assert {str(each.level) for each in found if each.code == f"script_{code}"} == {level}


@pytest.mark.parametrize("lines", [f'cd "$(dirname "$0")"\n{PLAIN}', "D=$(dirname $0)\npython $D/t.py"])
def test_launch_of_a_program_beside_the_copy_of_the_script_is_an_error(lines):
    found = check_script(f"#!/bin/bash\n#SBATCH --time=1:0:0\n{lines}\n", "job.sh")
    assert ("script_script_path", "job.sh:4", "error") in {(each.code, each.where, str(each.level)) for each in found}


def test_container_without_gpu_is_told_at_the_line_of_the_container():
    started = "apptainer exec --contain \\\na.sif \\\nbash -c 'cd a && \\\npython t.py'"
    found = check_script(f"#!/bin/bash\n#SBATCH --time=1:0:0 --gpus=4\n{started}\n", "job.sh")
    assert [each.where for each in found if each.code == "script_container_without_gpu"] == ["job.sh:3"]

"""Each rule of `check-slurm`: a script that has its fault, and the same script without it."""

import random
from pathlib import Path

import pytest

from dsrun.errors import UsageError
from dsrun.slurm.lint.convert import convert
from dsrun.slurm.lint.launch import rules
from dsrun.slurm.lint.read_script import read_script
from dsrun.slurm.lint.script_check import check_script

TESTS = Path(__file__).parents[2]
SCRIPTS = TESTS / "data" / "sbatch"
TWO = "--nodes=2 --ntasks-per-node=1 --gpus-per-node=4"
RANKS = "--nodes=2 --ntasks-per-node=4 --gpus-per-node=4"
ONE = "--gpus-per-node=4"
HEAD = "h=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)\nexport h\n"
C10D = "--rdzv_backend=c10d --rdzv_endpoint=$h:29500"
RUN = f"torchrun --nnodes=2 --nproc_per_node=4 {C10D} t.py"
STATIC = "torchrun --nnodes=2 --nproc_per_node=4 --master_addr=$h --master_port=29500"
MASTER = "export MASTER_ADDR=$(hostname) MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))\n"
OWN = "srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS python t.py'"
USR1 = "--gpus=1 --signal=B:USR1@60"
# Code, directives, the lines with the fault, and lines (and directives) without it.
FAULTS = [
    # Which shell expands what.
    ("rank_in_batch_shell", RANKS, MASTER + "export RANK=$SLURM_PROCID\nsrun python t.py", MASTER + OWN),
    ("rank_in_batch_shell", RANKS, MASTER + "RANK=$SLURM_PROCID srun python t.py", MASTER + OWN),
    ("rank_in_batch_shell", RANKS, MASTER + "srun --export=ALL,RANK=$SLURM_PROCID python t.py", MASTER + OWN),
    ("rank_in_batch_shell", RANKS, MASTER + "srun python t.py --rank $SLURM_PROCID", MASTER + OWN),
    ("rank_in_batch_shell", TWO, f"{HEAD}srun bash -c \"{STATIC} --node_rank=$SLURM_NODEID t.py\"",
     f"{HEAD}srun bash -c \"{STATIC} --node_rank=\\$SLURM_NODEID t.py\""),
    ("rank_in_batch_shell", TWO, f"{HEAD}A=\"--node_rank $SLURM_NODEID\"\nsrun {STATIC} $A t.py",
     f"{HEAD}A='--node_rank $SLURM_NODEID'\nsrun bash -c \"{STATIC} $A t.py\""),
    ("rank_in_batch_shell", TWO, f"{HEAD}export L=\"{STATIC} --node_rank $SLURM_PROCID\"\nsrun bash -c \"$L t.py\"",
     f"{HEAD}export L=\"{STATIC} --node_rank \\$SLURM_PROCID\"\nsrun bash -c \"$L t.py\""),
    ("rank_in_batch_shell", TWO, f"{HEAD}cat > r.sh <<E\n{STATIC} --node_rank $SLURM_NODEID t.py\nE\nsrun bash r.sh",
     f"{HEAD}cat > r.sh <<'E'\n{STATIC} --node_rank $SLURM_NODEID t.py\nE\nsrun bash r.sh"),
    ("rank_constant", TWO, f"{HEAD}r=0\nsrun {STATIC} --node_rank $r t.py",
     f"{HEAD}srun bash -c '{STATIC} --node_rank $SLURM_NODEID t.py'"),
    ("rank_constant", TWO, "cat > a.yaml <<E\nmachine_rank: 0\nE\nsrun accelerate launch --config_file a.yaml t.py",
     "cat > a.yaml <<E\nmixed_precision: bf16\nE\nsrun accelerate launch --config_file a.yaml t.py"),
    ("rank_wrong_variable", RANKS, MASTER + OWN.replace("LOCAL_RANK=$SLURM_LOCALID", "LOCAL_RANK=$SLURM_PROCID"),
     MASTER + OWN),
    ("rank_wrong_variable", TWO, f"{HEAD}srun bash -c '{STATIC} --node_rank=$SLURM_LOCALID t.py'",
     f"{HEAD}srun bash -c '{STATIC} --node_rank=$SLURM_NODEID t.py'"),
    ("not_exported", RANKS, "MASTER_ADDR=$(hostname)\n" + OWN, MASTER + OWN),
    ("not_exported", TWO, f"{HEAD.splitlines()[0]}\nsrun bash -c '{RUN}'", f"{HEAD}srun bash -c '{RUN}'"),
    ("export_none", f"{TWO} --export=NONE", f"{HEAD}srun {RUN}", f"{HEAD}export SLURM_EXPORT_ENV=ALL\nsrun {RUN}"),
    ("srun_export", RANKS, MASTER + OWN.replace("srun", "srun --export=A=1"), MASTER + OWN),
    ("literal_variable", TWO, f"{HEAD}srun {STATIC} --node_rank='$SLURM_NODEID' t.py",
     f"{HEAD}srun bash -c '{STATIC} --node_rank=$SLURM_NODEID t.py'"),
    ("value_per_task", TWO, f"{HEAD}srun bash -c '{RUN.replace('29500', '$RANDOM')}'", f"{HEAD}srun bash -c '{RUN}'"),
    ("is_host_once", TWO, f"{HEAD}is_host=$([ $(hostname) = $h ] && echo 1)\nsrun {RUN} --x 1\n".replace(
        "t.py", "--rdzv_conf=is_host=$is_host t.py"), f"{HEAD}srun {RUN}"),
    ("variable_undefined", TWO, f"HEAD_NODE=$(hostname)\nsrun {RUN}".replace("$h:", "$HEAD_NOD:"),
     f"HEAD_NODE=$(hostname)\nsrun {RUN}".replace("$h:", "$HEAD_NODE:")),
    ("variable_undefined", "--gpus=1", "STEPS=5\npython t.py --max $STEP", "STEPS=5\npython t.py --max $STEPS"),
    ("variable_late", TWO, f"srun {RUN}\n{HEAD}", f"{HEAD}srun {RUN}"),
    # What SLURM sets, and what it makes of the directives.
    ("slurm_variable_unset", "--gres=gpu:4", "torchrun --standalone --nproc_per_node=$SLURM_GPUS_PER_NODE t.py",
     "torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE t.py"),
    ("slurm_variable_unset", TWO, "export W=$((SLURM_NNODES * SLURM_CPUS_PER_TASK))", "export W=$((SLURM_NNODES * 4))"),
    ("tasks_per_node_text", RANKS, "export N=$SLURM_TASKS_PER_NODE", "export N=$SLURM_NTASKS_PER_NODE"),
    ("gpus_not_a_number", "--gpus=2", "torchrun --standalone --nproc_per_node=$CUDA_VISIBLE_DEVICES t.py",
     "torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE t.py"),
    ("array_index", "--gpus=1 --array=1-2 --output=%A_%a", "a=(1 2)\npython t.py ${a[$SLURM_ARRAY_TASK_ID]}",
     "a=(0 1 2)\npython t.py ${a[$SLURM_ARRAY_TASK_ID]}"),
    ("option_value", "-N=2 --gpus=1", "python t.py", ("-N2 --gpus=1", "python t.py")),
    ("option_value", "--nodes=two", "python t.py", ("--nodes=2-4", "python t.py")),
    ("option_value", "--gres=gpu=4", "python t.py", ("--gres=gpu:a100:4", "python t.py")),
    ("option_words", "--gpus=1 --mem=64 GB", "python t.py", ("--gpus=1 --mem=64GB", "python t.py")),
    ("option_words", "--gpus=1 --nodes", "python t.py", ("--gpus=1 --nodes=1", "python t.py")),
    ("option_unknown", "-nodes=2", "python t.py", ("--nodes=2", "python t.py")),
    ("option_unknown", "--walltime=1:00", "python t.py", ("--tasks-per-node=2", "python t.py")),
    ("time_invalid", "--time=10h", "python t.py", ('--time="2:00:00"', "python t.py")),
    ("time_in_minutes", "--time=48", "python t.py", ("--time=48:00:00", "python t.py")),
    ("memory_in_megabytes", "--mem=64", "python t.py", ("--mem=64G", "python t.py")),
    ("memory_contradict", "--mem=4G --mem-per-cpu=2G", "python t.py", ("--mem=4G", "python t.py")),
    ("tasks_contradict", "--nodes=2 --ntasks=1", "true", ("--nodes=2 --ntasks=2", "true")),
    ("gpus_contradict", "--gres=gpu:2 --gpus-per-node=4", "true", ("--gres=gpu:4 --gpus-per-node=4", "true")),
    ("directive_twice", "--gpus=1 --nodes=1 --nodes=2", "true", ("--gpus=1 --nodes=1", "true")),
    ("nodelist_exceeds", "--nodes=1 --nodelist=a,b", "true", ("--nodes=2 --nodelist=a,b", "true")),
    ("log_folder", "--output=logs/%j", "true", ("--output=%j", "true")),
    ("log_folder_late", "--output=logs/%j", "mkdir -p logs", ("--output=/logs/%j", "mkdir -p logs")),
    ("log_shared", "--array=0-3 --output=a.log", "true", ("--array=0-3 --output=a-%a.log", "true")),
    ("requeue_refused", "--no-requeue", "scontrol requeue $SLURM_JOB_ID", ("--requeue", "scontrol requeue 1")),
    ("het_group", "--gpus=1\n#SBATCH hetjob\n#SBATCH --gpus=1", "srun python t.py", ("--gpus=1", "srun python t.py")),
    # Signals.
    ("signal_no_step", "--gpus=1 --signal=USR1@60", "python t.py", "srun python t.py"),
    ("signal_kills_launcher", "--gpus=1 --signal=USR1@60", "srun torchrun t.py", "srun python t.py"),
    ("trap_waits", USR1, "trap 'echo x' USR1\nbash t.sh", "trap 'echo x; wait' USR1\nbash t.sh &\nwait"),
    ("trap_waits", USR1, "trap 'echo x' USR1\nsrun python t.py | tee log",
     "trap 'wait' USR1\nsrun python t.py &\nwait"),
    ("trap_without_signal", "--gpus=1", "trap 'touch stop' USR1\npython t.py &\nwait",
     (USR1, "trap 'touch stop; wait' USR1\npython t.py &\nwait")),
    ("wait_ends", USR1, "f() { touch stop; }\ntrap f USR1\nsrun python t.py &\nwait",
     "f() { touch stop; wait; }\ntrap f USR1\nsrun python t.py &\nwait"),
    # Launchers.
    ("nodes_mismatch", ONE, f"torchrun --nnodes=4 --nproc_per_node=4 {C10D} t.py",
     "torchrun --standalone --nproc_per_node=4 t.py"),
    ("nodes_mismatch", TWO,
     f"{HEAD}n=1\nARGS=(--nnodes $n --nproc_per_node 4 {C10D})\nsrun torchrun \"${{ARGS[@]}}\" t.py \"$@\"",
     f"{HEAD}n=$SLURM_NNODES\nA=(--nnodes $n --nproc_per_node 4 {C10D})\nsrun torchrun \"${{A[@]}}\" t.py \"$@\""),
    ("endpoint_missing", TWO, f"{HEAD}srun {STATIC} --rdzv_backend=c10d t.py", f"{HEAD}srun {RUN}"),
    ("no_rendezvous", TWO, "srun torchrun --nnodes=2 --nproc_per_node=4 t.py \"$@\"", f"{HEAD}srun {RUN} \"$@\""),
    ("address_not_one", TWO, "export MASTER_ADDR=$SLURM_JOB_NODELIST\n", HEAD.replace("h=", "MASTER_ADDR=")),
    ("master_per_task", TWO, f"srun bash -c 'h=$(hostname); {RUN}'", f"{HEAD}srun bash -c '{RUN}'"),
    ("port_invalid", ONE, "export MASTER_PORT=$SLURM_JOB_ID", "export MASTER_PORT=$((9000 + SLURM_JOB_ID % 9))"),
    ("port_fixed", "--gpus=1", "torchrun --master_port=29501 t.py", ("--exclusive",
     "torchrun --master_port=29501 t.py")),
    ("port_fixed", "--gpus=1", "torchrun --master_port=29501 t.py", ("--gpus=8", "torchrun --master_port=29501 t.py")),
    ("port_default", "--gpus=1", "deepspeed t.py", ("--gpus=8", "deepspeed t.py")),
    ("world_size_mismatch", RANKS, MASTER + OWN.replace("WORLD_SIZE=$SLURM_NTASKS", "WORLD_SIZE=2"), MASTER + OWN),
    ("no_master_addr", RANKS, OWN, MASTER + OWN),
    ("ranks_not_set", RANKS, MASTER + "export WORLD_SIZE=8\nsrun python t.py", MASTER + OWN),
    ("launcher_per_task", RANKS, f"{HEAD}srun --ntasks-per-node=1 {RUN}", f"{HEAD}srun --ntasks=2 {RUN}"),
    ("launcher_python", ONE, "torchrun --standalone python t.py", "torchrun --standalone t.py"),
    ("launcher_option", ONE, "accelerate launch --nproc_per_node 4 t.py", "accelerate launch --num_processes 4 t.py"),
    ("options_behind_script", ONE, "torchrun --standalone t.py --nproc_per_node=4",
     "torchrun --standalone --nproc_per_node=4 t.py"),
    ("devices_mismatch", RANKS, "srun python t.py --num_nodes 2 --devices 2",
     "srun python t.py --num_nodes 2 --devices 4"),
    ("hostfile_slots", TWO, "scontrol show hostnames | sed 's/$/ slots=8/' > hosts\ndeepspeed --hostfile hosts t.py",
     "scontrol show hostnames | sed 's/$/ slots=4/' > hosts\ndeepspeed --hostfile hosts t.py"),
    ("batch_shell_only", TWO, "python t.py", "srun python t.py"),
    ("visible_devices", ONE, "export CUDA_VISIBLE_DEVICES=0", "CUDA_VISIBLE_DEVICES=0 python a.py &\nwait"),
    ("interface_loopback", TWO, "export GLOO_SOCKET_IFNAME=lo", "export GLOO_SOCKET_IFNAME=ib0"),
    ("gpu_per_task_hidden", "--nodes=1 --ntasks=2 --gpus-per-task=1", MASTER + OWN, ("--ntasks=2 --gpus=2",
     MASTER + OWN)),
    # srun.
    ("step_exceeds_job", TWO, "srun --nodes=4 python t.py", "srun --nodes=2 python t.py"),
    ("step_gpus", ONE, "srun --gres=gpu:1 torchrun --nproc_per_node=4 t.py", "srun torchrun --nproc_per_node=4 t.py"),
    ("srun_nested", TWO, "srun bash -c 'srun python t.py'", "srun python t.py"),
    ("srun_shell_word", TWO, "f() { python t.py; }\nsrun f", "f() { python t.py; }\nexport -f f\nsrun bash -c f"),
    ("srun_shell_word", TWO, "srun A=1 python t.py", "srun env A=1 python t.py"),
    ("srun_pty", ONE, "srun --pty python t.py", "srun python t.py"),
    ("loop_waits", TWO, f"{HEAD}for n in a b; do\nsrun -N1 -n1 -w $n {RUN}\ndone",
     f"{HEAD}for n in a b; do\nsrun -N1 -n1 -w $n {RUN} &\ndone\nwait"),
    ("nodes_loop_rank", TWO, f"{HEAD}for n in a b; do\nsrun -N1 -n1 -w $n {STATIC} --node_rank=0 t.py &\ndone\nwait",
     f"{HEAD}i=0\nfor n in a b; do\nsrun -N1 -n1 -w $n {STATIC} --node_rank=$i t.py &\ni=$((i + 1))\ndone\nwait"),
    ("no_wait", ONE, "srun python t.py &", "srun python t.py &\nwait $!"),
    ("steps_collide", ONE, "for i in 1 2; do\nsrun python t.py &\ndone\nwait",
     "for i in 1 2; do\nsrun --exact -n1 --gpus=1 python t.py &\ndone\nwait"),
    ("cpus_not_inherited", f"{ONE} -c 8", "srun python t.py", "srun -c 8 python t.py"),
    ("container_without_gpu", ONE, "apptainer exec --bind $PWD a.sif python t.py",
     "apptainer exec --nv a.sif python t.py"),
    ("container_clean_environment", RANKS,
     f"{MASTER}export RANK=1\nsrun apptainer exec --nv --cleanenv a.sif python t.py",
     f"{MASTER}export RANK=1\nsrun apptainer exec --nv a.sif python t.py"),
    ("install_per_task", RANKS, "srun pip install x", "pip install x"),
    # The shell.
    ("shell_syntax", ONE, "if true; then\npython t.py", "if true; then\npython t.py\nfi"),
    ("here_document_open", ONE, "cat <<E\nx\n  E\npython t.py", "cat <<E\nx\nE\npython t.py"),
    ("continuation_broken", ONE, "python t.py \\ \n  --lr 1", "python t.py \\\n  --lr 1"),
    ("continuation_broken", ONE, "python t.py \\\n  # --lr 2\n  --lr 1", "python t.py \\\n  --lr 1"),
    ("continuation_broken", ONE, "python t.py\n  --lr 1", "a=(\n  # x\n  --lr 1\n)\npython t.py ${a[@]}"),
    ("continuation_swallows", ONE, "python t.py --lr 1 \\\nwait", "python t.py --lr 1\nwait"),
    ("not_an_assignment", ONE, "LR = 1\npython t.py", "LR=1\npython t.py\necho === x"),
    ("test_spacing", ONE, "if [$A = 1 ]; then true; fi", "if [[ $A = 1 && -z $B ]]; then true; fi"),
    ("brace_variable", ONE, "for i in {0..$N}; do true; done", "for i in {0..3}; do true; done"),
    ("typographic", ONE, "python t.py –-lr 1", "python t.py --lr 1"),
    ("tilde_quoted", ONE, 'D="~/data"\npython t.py $D', "D=~/data\npython t.py $D"),
    ("conda_init", ONE, "conda init\nconda activate x", "source ~/miniconda3/etc/profile.d/conda.sh\nconda activate x"),
    ("conda_not_initialised", ONE, "conda activate x", "source ~/miniconda3/bin/activate\nconda activate x"),
    ("address_cut", TWO, "export MASTER_ADDR=${SLURM_NODELIST:0:9}\n" + OWN, MASTER + OWN),
    ("address_cut", TWO, "export MASTER_ADDR=$(echo $SLURM_NODELIST | cut -d, -f1)\n" + OWN, MASTER + OWN),
    ("address_constant", TWO, "export MASTER_ADDR=10.0.0.7\n" + OWN,
     (f"{TWO} --nodelist=a,b", "export MASTER_ADDR=10.0.0.7\n" + OWN)),
    ("address_constant", TWO, f"srun {STATIC.replace('$h', '10.0.0.7')} t.py", f"{HEAD}srun {RUN}"),
    ("comment_in_word", ONE, 'export NAMES="ens"#"eth0"\npython t.py', 'export NAMES="ens" # "eth0"\npython t.py'),
    ("comment_in_word", ONE, "B=32#of each GPU\npython t.py $B", "B=32 # of each GPU\npython t.py $B"),
    ("variable_misspelt", ONE, "export XDG_CAHCE_HOME=/x\npython t.py", "export XDG_CACHE_HOME=/x\npython t.py"),
    ("variable_misspelt", ONE, "export NCCL_SOKCET_IFNAME=ib0\npython t.py",
     "export NCCL_SOKCET_IFNAME=ib0\nexport NCCL_SOCKET_IFNAME=$NCCL_SOKCET_IFNAME\npython t.py"),
    ("log_pattern", ONE, "source /home/%u/.bashrc\npython t.py", "source /home/$USER/.bashrc\npython t.py"),
    ("log_pattern", ONE, "python t.py --output runs/%j", "srun -o runs-%j.out python t.py"),
    ("log_pattern", ONE, "cp -r data /tmp/%x-%j/", "squeue -o %j\ndate +%j\nS='srun -o %x-%j.out'\n$S python t.py"),
    ("dollar_missing", ONE, "f=/tmp/part/$RANDOM\npython t.py\nrm f", "f=/tmp/part/f\npython t.py\nrm $f\nrm f"),
    ("not_sourced", ONE, "activate env\npython t.py", "source activate env\npython t.py"),
    ("not_sourced", ONE, "bash ~/.bashrc\npython t.py", ". ~/.bashrc\npython t.py"),
    ("not_sourced", ONE, "v/bin/activate\npython t.py", "source v/bin/activate\npython t.py"),
    ("nothing_remains", ONE, "bash -c 'source env.sh'\npython t.py", "bash -c 'source env.sh; python t.py'"),
    ("nothing_remains", ONE, "srun bash -c 'conda activate x'\nsrun python t.py",
     "srun bash -c 'echo $SLURM_PROCID'\nsrun bash -c 'export A=1; python t.py'"),
    ("command_misspelt", ONE, "exprot A=1\npython t.py", "export A=1\npython t.py"),
    ("tasks_not_started", f"{ONE} --ntasks-per-node=4", "python t.py --strategy ddp --devices 4",
     "srun python t.py --strategy ddp --devices 4"),
    ("tasks_not_started", f"{ONE} --ntasks-per-node=4", "python t.py trainer.devices=4",
     f"torchrun --nproc_per_node=4 {C10D} t.py --devices 4"),
    ("node_not_told", TWO, f"{HEAD}for n in $L; do srun -N 1 -n 1 {STATIC} --node_rank=$r t.py & let r++; done\nwait",
     f"{HEAD}r=0\nfor n in $L; do srun -N 1 -n 1 -w $n {STATIC} --node_rank=$r t.py & r=$((r+1)); done\nwait"),
    # More of kinds that others stand for.
    ("signal_no_step", "--gpus=1 --signal=USR1@60", "source env.sh\npython t.py", "source env.sh\nsrun python t.py"),
    ("signal_no_step", "--gpus=1 --signal=USR1@60", "singularity exec i.sif bash t.sh",
     "srun singularity exec i.sif bash t.sh"),
    ("failure_hidden", ONE, "python t.py\nexit 0", "python t.py || exit 1\nexit 0"),
    ("failure_hidden", TWO, f"{HEAD}for n in $L; do srun -N1 -w $n bash t.sh & done\nwait",
     f"{HEAD}for n in $L; do srun -N1 -w $n bash t.sh & P+=($!); done\nfor p in ${{P[@]}}; do wait $p || exit; done"),
    ("no_wait", ONE, "f() { python t.py; }\nf &", "f() { python t.py; }\ng() { wait; }\nf &\ng"),
    ("no_wait", TWO, "for n in $L; do ssh $n python t.py & done\necho started",
     "for n in $L; do ssh $n python t.py & done\nwait_for_all"),
    ("loop_waits", TWO, "for n in $L; do srun -N1 -w $n lightning run model --node-rank=$r t.py; done",
     "for n in $L; do srun -N1 -w $n lightning run model --node-rank=$r t.py & done\nwait"),
    ("nodes_mismatch", TWO, "srun lightning run model --num-nodes=3 t.py",
     "srun lightning run model --num-nodes=2 t.py"),
    ("ranks_exceed_gpus", TWO, "srun lightning run model --devices=8 t.py",
     "srun lightning run model --devices=4 t.py"),
    ("port_invalid", ONE, "torchrun --master_port $UID --nproc_per_node=4 t.py",
     "torchrun --master_port $((20000 + UID % 9999)) --nproc_per_node=4 t.py"),
    ("port_default", "--gpus=1", "srun torchrun --rdzv_backend=c10d --rdzv_endpoint=$(hostname) t.py",
     "srun torchrun --rdzv_backend=c10d --rdzv_endpoint=$(hostname):$((20000 + SLURM_JOB_ID % 9999)) t.py"),
    ("port_fixed", "--cpus-per-task=4", "export MASTER_PORT=29500\nsrun ./t.sh",
     ("--cpus-per-task=4 --exclusive", "export MASTER_PORT=29500\nsrun ./t.sh")),
    ("slurm_variable_unset", "--gres=gpu:4", "echo $(($SLURM_GPUS * 2))\npython t.py",
     "echo $SLURM_GPUS\npython t.py"),
    ("variable_late", ONE, "source env.sh\nexport A=$ROOT/x\nROOT=/y\npython t.py",
     "source env.sh\nROOT=/y\nexport A=$ROOT/x\npython t.py"),
    ("variable_undefined", ONE, "nodes_array=(a b)\nh=${nodes_arrays[0]}\npython t.py",
     "nodes_array=(a b)\nh=${nodes_array[0]}\npython t.py"),
    ("variable_undefined", ONE, "source env.sh\nSCRIPT_ARGS=--x\ntorchrun --nproc_per_node=4 t.py $ARGS",
     "source env.sh\nSCRIPT_ARGS=--x\ntorchrun --nproc_per_node=4 t.py $SCRIPT_ARGS $ARGS"),
    ("log_folder", f"{ONE} --output=logs/%j/out", "python t.py", (f"{ONE} --output=%j.out", "python t.py")),
    ("rank_in_batch_shell", ONE, "export R=$SLURM_LOCALID\ntorchrun --nproc_per_node=4 t.py --local_rank $R",
     "torchrun --nproc_per_node=4 t.py"),
    ("rank_in_batch_shell", "--nodes=1 --gpus-per-node=4",
     "srun bash -c \"torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 --node_rank=$SLURM_PROCID t.py\"",
     "srun bash -c 'torchrun --nnodes=$SLURM_NNODES --nproc_per_node=4 --node_rank=$SLURM_PROCID t.py'"),
    ("gpus_idle", "--gres=dcu:4", "torchrun --nproc_per_node=2 t.py", "torchrun --nproc_per_node=4 t.py"),
    ("module_late", ONE, "source v/bin/activate\nmodule purge\npython t.py",
     "module purge\nsource v/bin/activate\npython t.py"),
    ("script_path", ONE, 'cd "$(dirname "$0")"\npython t.py', "cd $SLURM_SUBMIT_DIR\npython t.py"),
    ("failure_hidden", ONE, "python t.py | tee log", "set -o pipefail\npython t.py | tee log"),
    ("failure_hidden", ONE, "srun python t.py || true", "srun python t.py"),
    ("failure_hidden", ONE, "python t.py &\nwait", "python t.py &\nwait $!"),
    ("secret", ONE, "export HF_TOKEN=hf_0123456789abcdefghij", "export HF_TOKEN=your_token_here"),
    ("secret", ONE, "python t.py --hub_token hf_0123456789abcdefghij",
     "python t.py --log hf_ds_gpt2_large_run_20240101.log"),
]  # fmt: skip


def codes(directives, lines, shebang="#!/bin/bash"):
    head = "".join(f"#SBATCH {each}\n" for each in ("--time=1:00:00", directives))
    return {each.code.removeprefix("script_") for each in check_script(f"{shebang}\n{head}{lines}\n", "job.sh")}


@pytest.mark.parametrize(("code", "directives", "wrong", "right"), FAULTS, ids=[each[0] for each in FAULTS])
def test_rule_tells_wrong_from_right(code, directives, wrong, right):
    assert code in codes(directives, wrong)
    directives, right = right if isinstance(right, tuple) else (directives, right)
    assert code not in codes(directives, right)


def test_every_rule_has_a_test():
    others = [TESTS / "unit" / "slurm" / f"test_script_{name}.py" for name in ("lint", "rules_across_nodes")]
    older = "".join(file.read_text() for file in [*others, SCRIPTS / "expected.toml"])
    tested = {"bash_in_sh", *(each[0] for each in FAULTS)}
    assert [code for code in rules()["rules"] if code not in tested and code not in older] == []


def test_bash_in_sh_is_told():
    assert "bash_in_sh" in codes(ONE, "a=(1 2)", shebang="#!/bin/sh")
    assert "bash_in_sh" not in codes(ONE, "a=1", shebang="#!/bin/sh")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f'{HEAD}srun bash -c "source x; \\\n  a \\\n  b; \\\n  {RUN.replace("nnodes=2", "nnodes=3")}"', 8),
        (f"{HEAD}srun torchrun \\\n  --nnodes=3 \\\n  --nproc_per_node=4 {C10D} t.py", 6),
        (f"{HEAD}A=(\n  --nproc_per_node=4 {C10D}\n  --nnodes=3\n)\nsrun torchrun ${{A[@]}} t.py", 7),
        (f"{HEAD}srun bash -c '\n  {RUN.replace('nnodes=2', 'nnodes=3')}'", 6),
    ],
)
def test_finding_names_the_line_of_the_flag(text, line):
    found = check_script(f"#!/bin/bash\n#SBATCH --time=1:0:0 {TWO}\n{text}\n", "job.sh")
    assert [each.where for each in found if each.code == "script_nodes_mismatch"] == [f"job.sh:{line}"]


def test_unclosed_block_is_named():
    text = "#!/bin/bash\n#SBATCH --time=1:00:00\nif a; then\n  for i in 1; do\n    b\n  done\nc\n"
    assert [(each.code, each.where) for each in check_script(text, "job.sh")] == [("script_shell_syntax", "job.sh:3")]


def test_what_a_lost_directive_leaves_behind_is_no_finding():
    text = "#!/bin/bash\n#SBATCH --time=1:00:00\n#SBTACH --gpus-per-node=4\ntorchrun --nproc_per_node=4 t.py\n"
    assert [each.code for each in check_script(text, "job.sh")] == ["script_directive_spelling"]


@pytest.mark.parametrize(
    ("code", "text", "level"),
    [
        ("directive_ignored", "true\n#SBATCH --mem=4G\npython t.py", "error"),
        ("directive_ignored", "python t.py\n#SBATCH --mem=4G", "warning"),
        ("gpus_idle", "torchrun --nproc_per_node=2 t.py", "error"),
        ("gpus_idle", "torchrun --nproc_per_node=3 t.py", "warning"),
        ("failure_hidden", "python t.py\necho end", "info"),
        ("failure_hidden", "python t.py\nexit 0", "warning"),
        ("secret", "export HF_TOKEN=hf_0123456789abcdefghij\npython t.py", "warning"),
    ],
)
def test_level_says_whether_the_job_can_do_its_work(code, text, level):
    found = check_script(f"#!/bin/bash\n#SBATCH --time=1:0:0 --gpus-per-node=4\n{text}\n", "job.sh")
    assert {str(each.level) for each in found if each.code == f"script_{code}"} == {level}


@pytest.mark.parametrize("option", ["--container-image=x.sqsh", "--mail-type=BEGIN --mail-type=END"])
def test_directive_that_is_right_is_no_error(option):
    found = check_script(f"#!/bin/bash\n#SBATCH --time=1:0:0 {option}\ntrue\n", "job.sh")
    assert {str(each.level) for each in found} <= {"info"}


def test_option_that_a_plugin_may_have_is_no_error():
    found = check_script("#!/bin/bash\n#SBATCH --time=1:00:00 --nvmps\ntrue\n", "job.sh")
    assert [(each.code, each.level) for each in found] == [("script_option_unknown", "info")]


def test_no_text_stops_the_check():
    """However a script is cut or garbled."""
    texts = [
        path.read_text() for folder in ("sbatch", "slurm_scripts") for path in (TESTS / "data" / folder).rglob("*.sh")
    ]
    words = ["$((", "<<E\n", "]]", "[[", "done", "if ", "srun ", "bash -c ", "${a[@]}", "=(", "#SBATCH -", "eval "]
    pieces = [*"\"'`$(){}[];|&<>\\\n# =\ue000\ue001\ue002", "trap x USR1", *words]
    chance = random.Random(0)
    for _ in range(150):
        text = chance.choice(texts)
        for _ in range(chance.randint(1, 5)):
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice(["", *pieces]) + text[at + chance.choice([0, 0, 3, 30]) :]
        check_script(text, "job.sh")
        try:
            convert(read_script(text), "job.sh")
        except UsageError:
            continue

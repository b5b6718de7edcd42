#!/bin/bash
#SBATCH --job-name=my_train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=48
#SBATCH --mem=200G
#SBATCH --chdir="/home/ada/my project"
#SBATCH --signal=B:USR1@144
#SBATCH --requeue
#SBATCH --open-mode=append
# Rendered by dsrun VERSION for ada: dsrun render-slurm --nodes 4
# `dsrun render-slurm --show-template` prints the template; signals, waiting and requeueing are functions of job.bash.
# shellcheck disable=SC1090,SC1091,SC2034,SC2154
set -u -o pipefail
source /opt/dsrun/share/job.bash || exit 4
export DSRUN_GPUS=4
export PATH=/opt/dsrun/bin:"$PATH"

nproc=4 cpu_only='' trains='' supervised=yes
requeue=yes max_requeues=3 max_requeues_unseen=20 saving_time=114
rdzv_backend=c10d gpus_per_node=4 join_timeout=''
start_job --per-job "$PWD"/runs/my_train

# One supervisor per node ends and restarts all workers together; signals reach the program, not the supervisor.
srun --export=ALL --wait=60 "${cpus[@]}" \
    bash -c "$on_node" dsrun-node \
    /opt/dsrun/bin/python -m dsrun launch --no-signals -- \
    python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=4 --max-restarts=1 \
    --rdzv-backend=c10d --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    -- my_train.py --x 1 $'it\'s $$HOME' &
finish "$!"

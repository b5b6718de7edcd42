#!/bin/bash
#SBATCH --job-name=my_train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
# Rendered by dsrun VERSION
# `dsrun render-slurm --show-template` prints the template; signals, waiting and requeueing are functions of job.bash.
# shellcheck disable=SC1090,SC1091,SC2034,SC2154
set -u -o pipefail
source /opt/dsrun/share/job.bash || exit 4

nproc=2 cpu_only='' trains='' supervised=''
requeue=yes max_requeues=20 saving_time=150
rdzv_backend=static gpus_per_node=2 join_timeout=''
start_job --per-job "$PWD"/runs/my_train

srun --export=ALL --kill-on-bad-exit=1 "${cpus[@]}" \
    bash -c "$on_node" dsrun-node \
    apptainer exec --nv --bind="$PWD" --bind="$DSRUN_OUTPUT" --pwd="$PWD" --bind=/data '/images/my train.sif' python -m torch.distributed.run \
    --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node=2 --max-restarts=0 \
    --rdzv-backend=static --rdzv-endpoint="$endpoint" --rdzv-id="$job-$restart" \
    -- my_train.py --x 1 $'it\'s $$HOME' &
finish "$!"

#!/bin/bash
#SBATCH --job-name=retnet
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=25:00:00
#SBATCH --output=retnet-%j.log

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

set -e
host=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | tail -n 1)
ip=$(getent hosts $host | awk '{ print $1; exit }')
is_host=$(if [ "$(hostname)" = $host ]; then echo 1; else echo 0; fi)

srun bash -c "torchrun --nnodes=2 --nproc_per_node=2 \
    --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \
    --rdzv_conf=is_host=$is_host \
    --rdzv_endpoint=$ip:$((17000 + SLURM_JOB_ID % 9000)) \
    train_retnet.py"

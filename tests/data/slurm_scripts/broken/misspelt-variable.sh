#!/bin/bash
#SBATCH --job-name=nllb
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=2
#SBATCH --time=19:00:00
#SBATCH --output=nllb-%j.log

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

GPUS_PER_NODE=2
MASTER=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((15000 + SLURM_JOB_ID % 15000))

srun torchrun --nnodes=2 --nproc_per_node=$GPUS_PER_NODES \
    --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID --rdzv_endpoint=$MASTER:$PORT train_nllb.py

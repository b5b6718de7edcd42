#!/bin/bash
#SBATCH -J albert
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH -t 9:00:00
#SBATCH -o albert-%j.log

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

port=$((15000 + SLURM_JOB_ID % 15000))
ENDPOINT=localhost:$port
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \
    --rdzv_endpoint=$ENDPOINT train_albert.py

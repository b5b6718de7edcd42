#!/bin/bash
#SBATCH -J esm
#SBATCH -N 4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH -t 1-12
#SBATCH -o esm-%j.out

set -euo pipefail
NNODES=1
NPROC=1
HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
PORT=$((16500 + SLURM_JOB_ID % 6500))

args=(
    --nnodes "$NNODES"
    --nproc_per_node "$NPROC"
    --rdzv_backend c10d
    --rdzv_endpoint "$HOST:$PORT"
    --rdzv_id "$SLURM_JOB_ID"
)
srun torchrun "${args[@]}" train_esm.py --model esm2_t30 "$@"

#!/bin/bash
#SBATCH --job-name=phi
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gres=gpu:2
#SBATCH --time=24:00:00
#SBATCH --output=phi-%j.log

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

trap 'echo "exit code $?"' EXIT

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

set -e
head_node=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)

srun torchrun --nnodes=4 --nproc_per_node=2 \
    --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d \
    --rdzv_endpoint=$head_node:$((29000 + SLURM_JOB_ID % 999)) \
    train_phi.py --data textbooks

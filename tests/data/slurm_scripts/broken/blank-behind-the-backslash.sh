#!/bin/bash
#SBATCH --job-name=donut
#SBATCH --ntasks=1
#SBATCH --gpus=2
#SBATCH --time=10:00:00
#SBATCH --output=donut-%j.log

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

set -e
source ~/envs/docs/bin/activate
torchrun --standalone \
    --nproc_per_node=2 \ 
    train_donut.py \
    --receipts data/cord

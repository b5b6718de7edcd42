#!/bin/bash
#SBATCH --job-name=segformer
#SBATCH --nodes=1
#SBATCH --gpus-per-node=2
#SBATCH --time=11:00:00
#SBATCH --output=seg-%j.log

export TRITON_CACHE_DIR=/tmp/triton-$SLURM_JOB_ID
export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-$SLURM_JOB_ID

umask 027

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

OUT=runs/${SLURM_JOB_NAME:-run}-$SLURM_JOB_ID
mkdir -p "$OUT"

set -e
source ~/envs/vision/bin/activate
torchrun --standalone --nproc_per_node=2 train_segformer.py --ade20k 2>&1 | tee seg.txt

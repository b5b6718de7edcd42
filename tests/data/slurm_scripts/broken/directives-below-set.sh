#!/bin/bash
#SBATCH --job-name=keypoints
#SBATCH --time=6:00:00
#SBATCH --output=keypoints-%j.log
set -e
#SBATCH --gpus-per-node=2

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

cat <<INFO
job:    $SLURM_JOB_ID
nodes:  $SLURM_JOB_NODELIST
folder: $PWD
INFO

source ~/envs/vision/bin/activate
torchrun --standalone --nproc_per_node=2 train_keypoints.py --backbone hrnet

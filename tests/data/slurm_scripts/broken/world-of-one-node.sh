#!/bin/bash
#SBATCH -J stereo
#SBATCH -N 2
#SBATCH --ntasks-per-node=2
#SBATCH --gres=gpu:2
#SBATCH -t 9:00:00
#SBATCH -o stereo-%j.log

# The logs of old runs are kept for a month, see the wiki of the group.
# Questions: the channel of the cluster.

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

readonly PROJECT=${PROJECT:-lab}
echo "project $PROJECT"

set -e
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((15000 + SLURM_JOB_ID % 15000))
srun bash -c 'WORLD_SIZE=2 RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train_stereo.py'

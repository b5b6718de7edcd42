#!/bin/bash
#SBATCH --job-name=styletransfer
#SBATCH --ntasks=1
#SBATCH --gpus=2
#SBATCH --time=2:30:00
#SBATCH --output=style-%j.log

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

source ~/envs/vision/bin/activate
NPROC=“2”
torchrun --standalone --nproc_per_node=$NPROC train_style.py --image starry.jpg

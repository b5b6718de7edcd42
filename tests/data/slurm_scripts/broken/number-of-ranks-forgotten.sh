#!/bin/bash
#SBATCH --job-name=vqa
#SBATCH --ntasks=1
#SBATCH --gpus=2
#SBATCH --time=7:00:00
#SBATCH --output=vqa-%j.log

if [ -n "${DEBUG:-}" ]; then
    set -x
fi

START=$(date +%s)
REVISION=$(git rev-parse --short HEAD 2>/dev/null || echo unknown)
echo "revision $REVISION, started at $START"

cd "$SLURM_SUBMIT_DIR" || exit 1

# -----------------------------------------------------------------
# settings
# -----------------------------------------------------------------

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

source ~/envs/vision/bin/activate
torchrun --standalone train_vqa.py --images data/vg

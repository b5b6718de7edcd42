#!/bin/bash
#SBATCH --job-name=cv-search
#SBATCH --ntasks=1
#SBATCH --gpus=1
#SBATCH --time=4:00:00
#SBATCH --output=cv-%j.log

cd "$SLURM_SUBMIT_DIR" || exit 1

free -g | head -n 2
df -h /tmp | tail -n 1

set -e
if [ -n "$1" ]; then
    model=$1
else
    model=efficientnet_b0

if [ "$model" = vit_b ]; then
    lr=1e-4
else
    lr=1e-3
fi

python train_cv.py --model "$model" --lr "$lr"

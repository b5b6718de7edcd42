#!/bin/bash
#SBATCH --job-name=cache
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=cache-%j.log

export XDG_CAHCE_HOME=/scratch/$USER/cache
torchrun --standalone --nproc_per_node=4 train_cache.py

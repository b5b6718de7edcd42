#!/bin/bash
#SBATCH --job-name=own
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=own-%j.log

export WANDB_MODE=offline
bash ~/envs/nlp/bin/activate
torchrun --standalone --nproc_per_node=4 train_own.py

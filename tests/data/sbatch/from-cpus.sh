#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --gres=gpu:2
#SBATCH --cpus-per-task=16
torchrun --standalone --nproc_per_node=$SLURM_CPUS_PER_TASK train.py

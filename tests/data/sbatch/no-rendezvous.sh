#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
srun torchrun --nnodes=2 --nproc_per_node=4 train.py

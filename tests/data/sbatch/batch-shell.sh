#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --nodes=4
#SBATCH --gpus-per-node=8
torchrun --nproc_per_node=8 train.py --lr 1e-4

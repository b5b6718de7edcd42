#!/bin/bash
#SBATCH --job-name=zero
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=zero-%j.log

source ~/envs/nlp/bin/activate
torchrun --standalone --nproc_per_node=4 train_zero.py
exit 0

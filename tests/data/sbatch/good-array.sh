#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --array=0-9%2
#SBATCH --gpus=1
#SBATCH --output=sweep-%A_%a.out
rates=(1e-5 3e-5 1e-4)
rate=${rates[$((SLURM_ARRAY_TASK_ID % 3))]}
python train.py --lr "$rate" --seed "$SLURM_ARRAY_TASK_ID"

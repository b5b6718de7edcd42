#!/bin/bash
#SBATCH --job-name=part
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=part-%j.log

lockfile=$PWD/lock-$SLURM_JOB_ID
touch "$lockfile"
torchrun --standalone --nproc_per_node=4 train_part.py
rm lockfile

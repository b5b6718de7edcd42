#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --gpus-per-node=1
#SBATCH --signal=B:USR1@120
trap 'scontrol requeue $SLURM_JOB_ID' USR1
srun python train.py

#!/bin/bash
#SBATCH --job-name=clip
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=4
#SBATCH --time=6:00:00
#SBATCH --output=clip_%j.out

export MASTER_ADDR=$MASTER_ADDR
export MASTER_PORT=$((17000 + SLURM_JOB_ID % 9000))
export WORLD_SIZE=$SLURM_NTASKS

srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train_clip.py --workers 4'

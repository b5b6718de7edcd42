#!/bin/bash
#SBATCH --job-name=share
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus=4
#SBATCH --time=6:00:00
#SBATCH --output=share_%j.out

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((17000 + SLURM_JOB_ID % 9000))
export WORLD_SIZE=$SLURM_NTASKS

srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID python train_share.py --workers 4'

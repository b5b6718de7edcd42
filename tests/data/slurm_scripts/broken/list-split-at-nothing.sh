#!/bin/bash
#SBATCH --job-name=mae
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=6:00:00
#SBATCH --output=mae_%j.out

nodes=($SLURM_JOB_NODELIST)
head_node=${nodes[0]}
port=$((17000 + SLURM_JOB_ID % 9000))

srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_id="$SLURM_JOB_ID" \
    --rdzv_backend=c10d --rdzv_endpoint="$head_node:$port" train_mae.py

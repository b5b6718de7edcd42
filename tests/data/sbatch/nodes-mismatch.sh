#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
head=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n1)
srun torchrun \
    --nnodes 2 \
    --nproc_per_node 16 \
    --rdzv_backend c10d --rdzv_endpoint $head:29500 \
    train.py

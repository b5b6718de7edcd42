#!/bin/bash
#SBATCH --job-name=t
#SBATCH --time=10:00:00
#SBATCH --nodes=2
#SBATCH --gpus-per-node=4
export MASTER_ADDR=localhost
export MASTER_PORT=29500
srun torchrun --nnodes=$SLURM_NNODES --node_rank=$SLURM_NODEID --nproc_per_node=4 --master_addr=$MASTER_ADDR --master_port=$MASTER_PORT train.py

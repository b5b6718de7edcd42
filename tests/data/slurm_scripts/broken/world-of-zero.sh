#!/bin/bash
#SBATCH --job-name=rwkv
#SBATCH --nodes=2
#SBATCH --gpus-per-task=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=20:00:00
#SBATCH --output=rwkv-%j.log

test -d figures || mkdir figures

export WANDB_MODE=offline WANDB_DIR=$PWD/wandb
mkdir -p "$WANDB_DIR"

trap 'echo "exit code $?"' EXIT

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

export GPUS=$((SLURM_NNODES * SLURM_GPUS_PER_NODE))
export HOST=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export PORT=$((26000 + SLURM_JOB_ID % 2000))

srun bash -c 'accelerate launch --num_machines $SLURM_NNODES --num_processes $GPUS \
    --machine_rank $SLURM_NODEID --main_process_ip $HOST --main_process_port $PORT \
    train_rwkv.py --ctx 4096'

#!/bin/bash
#SBATCH -J twice
#SBATCH -N 2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus=3
#SBATCH --gpus-per-node=2
#SBATCH -t 4:00:00
#SBATCH -o twice-%j.log

export CUDA_DEVICE_MAX_CONNECTIONS=1
export TOKENIZERS_PARALLELISM=false

umask 027

test -d figures || mkdir figures

trap 'echo "exit code $?"' EXIT

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

export NCCL_DEBUG=WARN
export TORCH_NCCL_ASYNC_ERROR_HANDLING=1

M=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
srun torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_id=$SLURM_JOB_ID \
    --rdzv_endpoint=$M:$((15000 + SLURM_JOB_ID % 15000)) train_twice.py

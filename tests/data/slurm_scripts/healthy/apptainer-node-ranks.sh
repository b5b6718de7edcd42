#!/bin/bash
#SBATCH --job-name=vit-l
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=56
#SBATCH --time=1-12:00:00
#SBATCH --output=vit-%j.log

set -euo pipefail
IMAGE=$HOME/images/pytorch.sif
BIND=$PWD,$HOME/data

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -1)
export MASTER_PORT=$((19000 + SLURM_JOB_ID % 1000))
export NCCL_SOCKET_IFNAME=ib0
export WANDB_MODE=offline

# Apptainer hands the environment of the task on to the container.
srun -c "$SLURM_CPUS_PER_TASK" apptainer exec --nv --bind "$BIND" "$IMAGE" \
    torchrun --nnodes "$SLURM_NNODES" --nproc_per_node 4 \
    --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d \
    --rdzv_endpoint "$MASTER_ADDR:$MASTER_PORT" \
    train_vit.py --data "$HOME/data/imagenet"

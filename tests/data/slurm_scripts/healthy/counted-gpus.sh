#!/bin/bash
#SBATCH --job-name=moe
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=a100:4
#SBATCH --time=36:00:00
#SBATCH --output=moe-%j.log

export PYTHONUNBUFFERED=1 PYTHONFAULTHANDLER=1

# What the node has been given, not what a variable of the request says (that one is a100:4).
NGPUS=$(echo "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | wc -l)
NNODES=${SLURM_NNODES:-1}
WORLD=$((NGPUS * NNODES))
ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

echo "$NNODES nodes with $NGPUS GPUs: $WORLD ranks"

srun --export=ALL,NCCL_IB_TIMEOUT=22 torchrun \
    --nnodes=$NNODES --nproc_per_node=$NGPUS \
    --rdzv_id=moe-$SLURM_JOB_ID --rdzv_backend=c10d --rdzv_endpoint=$ADDR:$((15000 + SLURM_JOB_ID % 15000)) \
    train_moe.py --experts 64 --ep $WORLD

#!/bin/bash
#SBATCH --job-name=t5-base
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --time=8:00:00
#SBATCH --output=t5-%j.out

export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((18000 + SLURM_JOB_ID % 9000))

# conda itself starts the program in the environment.
conda run --no-capture-output -n t5 \
    torchrun --nnodes=2 --nproc-per-node=4 --rdzv-id="$SLURM_JOB_ID" \
    --rdzv-backend=c10d --rdzv-endpoint="$MASTER_ADDR:$MASTER_PORT" train_t5.py --epochs 3
